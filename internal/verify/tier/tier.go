// Package tier says which tests run when.
//
//   - The default tier, plain "go test ./...", has the tests that decide by events or in
//     simulated time, and one real example of each thing that only processes, terminals
//     and clusters show. None asserts a wall-clock time or a rate.
//   - The proof tier, "make proof", has all others: more processes and clusters,
//     servers of other versions, storms, measurements and long simulations. Its packages
//     run one at a time, so that nothing disturbs a measurement.
//   - The soak tier has no end of its own: "make soak", "make mutants" and "make model".
//
// A test belongs to the default tier unless it begins with [Proof].
package tier

import (
	"os"
	"testing"
)

// Variable is the environment variable that adds the tests of the proof tier to the
// default ones, if its value is "proof".
const Variable = "NATSLOCK_TIER"

// IsProof reports whether the proof tier runs.
func IsProof() bool { return os.Getenv(Variable) == "proof" }

// Proof puts a test, or part of one, into the proof tier: the default tier skips
// it.
func Proof(t testing.TB) {
	t.Helper()
	if !IsProof() {
		t.Skip("of the proof tier: make proof")
	}
}
