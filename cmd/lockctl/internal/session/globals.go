package session

import (
	"github.com/alecthomas/kong"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/internal/tool"
)

// Globals are the flags that every command has.
type Globals struct {
	Bucket           string `env:"LOCKCTL_BUCKET" default:"natslock" placeholder:"NAME" help:"Bucket that holds the locks (default ${default})."`
	tool.Connection  `embed:"" group:"connection"`
	*console.Console `kong:"-"`
	Version          kong.VersionFlag `help:"Print the version."`

	MayCreate bool `kong:"-"` // create the bucket if it is missing
}
