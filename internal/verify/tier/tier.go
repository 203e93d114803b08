// Package tier determines which tests run when.
//
//   - The default tier, plain "go test ./...", contains the tests that rely on events or
//     simulated time, and one real example of everything that only processes, terminals and
//     clusters can show. None asserts a wall-clock time or a rate.
//   - The proof tier, "make proof", contains all other tests: more processes and clusters,
//     servers of other versions, storms, measurements and long simulations. Its packages run
//     one at a time, so that nothing disturbs a measurement.
//   - The soak tier consists of separate commands that take from minutes to an hour: "make
//     soak", "make mutants" and "make model".
//
// A test belongs to the default tier unless it begins by calling [Proof].
package tier

import (
	"os"
	"testing"
)

// Variable is the environment variable that adds the proof tier's tests to the default
// ones if its value is "proof".
const Variable = "NATSLOCK_TIER"

// IsProof reports whether the proof tier runs.
func IsProof() bool { return os.Getenv(Variable) == "proof" }

// Proof puts a test, or part of a test, into the proof tier. The default tier skips it.
func Proof(t testing.TB) {
	t.Helper()
	if !IsProof() {
		t.Skip("belongs to the proof tier: run make proof")
	}
}
