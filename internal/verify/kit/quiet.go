package kit

import (
	"flag"
	"log"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/natslock/locks/internal/verify/tier"
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

// MoreAtOnce runs four parallel tests per processor, for packages whose tests mostly wait for their
// own servers and processes. It has no effect in the proof tier, whose measurements must not be
// disturbed, or if -parallel is given. Call it from TestMain.
func MoreAtOnce() {
	flag.Parse()
	chosen := tier.IsProof()
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		_ = flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0)))
	}
}
