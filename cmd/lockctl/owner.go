package main

import (
	"fmt"
	"os"
	"path/filepath"
	"unicode/utf8"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/natslock"
)

// naming is the --owner flag of the commands that hold a lock while they run.
type naming struct {
	Owner string `placeholder:"TEXT" help:"Name of the holder (default USER@HOST:PID and the command's name without its arguments)."`
}

// maxCommandName is the maximum length in bytes of a command's name in the owner.
const maxCommandName = 64

// as returns the option that sets the client's owner. By default the owner contains the
// command's base name but not its arguments: every user with read access to the bucket can see
// the owner, and arguments may be secret.
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
