package kit

import (
	"log"
	"log/slog"
	"os"
	"testing"
)

// Main runs the tests of a package, for its TestMain. It discards what clients log by default, since
// they lose a lot of locks, and fails if a test leaves a goroutine.
func Main(m *testing.M) {
	Quiet()
	LeakCheck(m)
}

// Quiet discards what clients log by default: the tests of a package lose a lot of locks. It is
// for TestMain.
func Quiet() {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	log.SetOutput(os.Stderr) // which SetDefault has redirected
}
