package main

import (
	"fmt"
	"os"
	"path/filepath"
	"unicode/utf8"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/natslock"
)

// naming is the flag of the commands that hold a lock as long as they run.
type naming struct {
	Owner string `placeholder:"TEXT" help:"Name of the holder (default USER@HOST:PID and the command's name without its arguments)."`
}

// maxCommandName limits the bytes of a command's name that are shown.
const maxCommandName = 64

// as names the client. Every user that may read the bucket sees that name, and the arguments
// of a command can hold secrets. So only the base name of the command is in it.
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
