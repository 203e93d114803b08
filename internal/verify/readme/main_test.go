//go:build unix

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSessions runs what each document shows: times, tokens and ids apart, it is what
// lockctl prints.
func TestSessions(t *testing.T) {
	require.NotEmpty(t, sessions)
	for name, steps := range sessions {
		t.Run(name, func(t *testing.T) {
			page, err := os.ReadFile(filepath.Join("../../..", name))
			require.NoError(t, err)
			_, written, _, err := split(string(page))
			require.NoError(t, err)
			played, err := play(steps)
			require.NoError(t, err)
			require.Equal(t, plain(played), plain(written), "the page is out of date: make docs")
		})
	}
}
