package main

import (
	"io"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
)

// No terminal reads what a run inside the tests prints.
func init() { text.DisableColors() }

// Main runs lockctl in this process, with an environment of its own and without signals.
func Main(environ []string, stdin io.Reader, stdout, stderr io.Writer, args ...string) (code int) {
	return mainCode(console.New(environ, stdin, stdout, stderr), args)
}
