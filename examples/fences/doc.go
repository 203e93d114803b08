// Package fences contains guards to paste into a service. They let a resource refuse a
// stale lock holder by its fencing token, be it a database row, an entry in a key-value
// bucket, a consumer, or anything behind HTTP.
//
// All of them work alike: the resource remembers the highest token that it has seen, and
// compares the token and applies the change in one atomic step. For streams and buckets,
// use package fence, which needs no token in the data.
package fences
