//go:build unix

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
)

// TestSessions runs the lines that each document shows. Their output must match the
// document, apart from times, tokens and IDs.
func TestSessions(t *testing.T) {
	tier.Proof(t)
	require.NotEmpty(t, sessions)
	bin := t.TempDir()
	require.NoError(t, build(bin))
	for name, steps := range sessions {
		t.Run(name, func(t *testing.T) {
			page, err := os.ReadFile(filepath.Join("../../..", name))
			require.NoError(t, err)
			_, written, _, err := split(string(page))
			require.NoError(t, err)
			played, err := play(bin, steps)
			require.NoError(t, err)
			require.Equal(t, plain(played), plain(written), "the page is out of date: make docs")
		})
	}
}
