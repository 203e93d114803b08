// Package fences has guards to paste into a service. With them a resource refuses a stale
// lock holder by its fencing token: a row in a database, an entry of a key-value bucket, a
// consumer, or anything behind HTTP.
//
// All of them work alike: the resource remembers the highest token that it has seen, and
// compares and changes in one atomic step. For streams and buckets there is package fence,
// which needs no token in the data.
package fences
