package kit

import (
	"log"
	"log/slog"
	"os"
	"testing"
)

// Main runs the tests of a package; call it from TestMain. It discards what clients log by default,
// since they lose many locks, and fails if a test leaves a goroutine.
func Main(m *testing.M) {
	Quiet()
	LeakCheck(m)
}

// Quiet discards what clients log by default, because the tests of a package lose many locks. Call
// it from TestMain.
func Quiet() {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	log.SetOutput(os.Stderr) // SetDefault has redirected it
}
