package kit

import (
	"log"
	"log/slog"
	"os"
	"testing"
)

// Main runs a package's tests; call it from TestMain. It discards what clients log by default,
// because the tests lose many locks, and fails if a test leaves a goroutine behind.
func Main(m *testing.M) {
	Quiet()
	LeakCheck(m)
}

// Quiet discards what clients log by default, because a package's tests may lose many locks. Call
// it from TestMain.
func Quiet() {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	log.SetOutput(os.Stderr) // undo what SetDefault did to the log package
}
