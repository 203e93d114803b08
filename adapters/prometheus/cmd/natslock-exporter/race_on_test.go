//go:build race

package main

// raced reports whether the race detector is on, which makes code several times slower.
const raced = true
