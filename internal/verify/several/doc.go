// Package several simulates clients that lock several names at once while they crash, lose
// their connection and meet faults. The simulation covers an hour in memory and a few minutes
// on a real server. The package has no code outside its test.
package several
