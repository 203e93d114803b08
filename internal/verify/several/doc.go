// Package several simulates clients that lock several names at once, while they crash, lose
// the server and meet faults. The package has no code outside its test.
package several
