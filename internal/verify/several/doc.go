// Package several simulates clients that lock several names at once while they crash, lose
// their connection and meet faults: for an hour in memory, and for a few minutes on a real
// server. The package has no code outside its test.
package several
