//go:build !race

package main

// raced says that the race detector is on, which makes code several times slower.
const raced = false
