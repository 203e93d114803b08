package main

import (
	"fmt"
	"os"
	"path/filepath"
	"unicode/utf8"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/natslock"
)

// naming is the flag of the commands that hold a lock while they run.
type naming struct {
	Owner string `placeholder:"TEXT" help:"Name of the holder (default USER@HOST:PID and the command's name without its arguments)."`
}

// maxCommandName limits how many bytes of a command's name are shown.
const maxCommandName = 64

// as returns the option that names the client. Every user that may read the bucket sees the
// name, and arguments of a command may be secret, so the name has only the command's base
// name.
func (n naming) as(command string) natslock.Option {
	if n.Owner != "" {
		return natslock.WithOwner(n.Owner)
	}
	name := filepath.Base(command)
	if len(name) > maxCommandName {
		end := maxCommandName
		for !utf8.RuneStart(name[end]) {
			end--
		}
		name = name[:end]
	}
	return natslock.WithOwner(fmt.Sprintf("%s:%d %s", session.Operator(), os.Getpid(), name))
}
