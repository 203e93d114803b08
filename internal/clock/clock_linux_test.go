package clock_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
)

// TestBootTime reads the clocks in a time namespace whose boot time is 1000 s ahead, as
// if the machine had been suspended for that long.
func TestBootTime(t *testing.T) {
	const inside = "NATSLOCK_TIME_NAMESPACE"
	if os.Getenv(inside) != "" {
		fmt.Printf("suspended %v\n", clock.Suspended())
		return
	}
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--time", "--boottime", "1000", os.Args[0], "-test.run=^TestBootTime$")
	cmd.Env = append(os.Environ(), inside+"=1")
	out, err := cmd.CombinedOutput()
	found := regexp.MustCompile(`suspended (\S+)`).FindSubmatch(out)
	if found == nil {
		t.Skipf("no time namespace here: %v: %s", err, out)
	}
	slept, err := time.ParseDuration(string(found[1]))
	require.NoError(t, err)
	require.InDelta(t, 1000*time.Second, slept-clock.Suspended(), float64(time.Second))
}
