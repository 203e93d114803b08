package kit

import (
	"log"
	"log/slog"
	"os"
)

// Quiet discards what clients log by default: the tests of a package lose a lot of locks. It is
// for TestMain.
func Quiet() {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	log.SetOutput(os.Stderr) // which SetDefault has redirected
}
