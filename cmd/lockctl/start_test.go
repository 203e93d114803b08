//go:build unix

package main_test

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
)

// TestStart checks that no package takes long to initialize, because every "lockctl run" starts two
// processes.
func TestStart(t *testing.T) {
	tier.Proof(t)
	const most = 5 // ms: a table of all runes takes 19, all current packages together 3
	took := map[string]float64{}
	line := regexp.MustCompile(`(?m)^init (\S+) @\S+ ms, (\S+) ms clock`)
	for range 10 {
		code, _, errs := withEnv(t, nil, []string{"GODEBUG=inittrace=1"}, "--version")
		require.Zero(t, code)
		for _, m := range line.FindAllStringSubmatch(errs, -1) {
			ms, err := strconv.ParseFloat(m[2], 64)
			require.NoError(t, err)
			if least, ok := took[m[1]]; !ok || ms < least {
				took[m[1]] = ms
			}
		}
	}
	require.NotEmpty(t, took)
	for name, ms := range took {
		require.Less(t, ms, float64(most), "%s", name)
	}
}
