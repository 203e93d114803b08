// Package record defines what the library keeps in a bucket: the keys, the encoding of lock names, and the values. It
// does no I/O.
package record
