package main

import (
	"io"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
)

// Output is compared as text, so a run inside the tests must not print colors.
func init() { text.DisableColors() }

// Main runs lockctl in this process, with its own environment and without signal handling.
func Main(environ []string, stdin io.Reader, stdout, stderr io.Writer, args ...string) (code int) {
	return mainCode(console.New(environ, stdin, stdout, stderr), args)
}
