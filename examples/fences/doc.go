// Package fences has guards to paste into a service. Each lets a resource refuse a stale
// lock holder by its fencing token: a row in a database, an entry of a key-value bucket, a
// consumer, or anything behind HTTP.
//
// All of them do the same. The resource remembers the greatest token that it has seen, and
// compares and changes in one atomic step. For streams and buckets package fence needs no
// token in the data.
package fences
