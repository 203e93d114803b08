//go:build unix

package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadme runs what the README shows: times, tokens and ids apart, it is what
// lockctl prints.
func TestReadme(t *testing.T) {
	page, err := os.ReadFile("../../../README.md")
	require.NoError(t, err)
	_, written, _, err := split(string(page))
	require.NoError(t, err)
	played, err := play()
	require.NoError(t, err)
	require.Equal(t, plain(played), plain(written), "the README is out of date: make docs")
}
