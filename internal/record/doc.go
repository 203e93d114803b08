// Package record is what the library keeps in a bucket: the keys, the encoding of lock names, and the values. It
// computes; it does no I/O.
package record
