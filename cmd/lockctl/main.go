// Command lockctl takes, shows and breaks the locks of package natslock from a
// shell.
//
//	lockctl run deploy -- ./deploy.sh      run a command under a lock
//	lockctl run --read index -- ./query    with other readers, but no writer
//	lockctl ls 'orders.>'                  who holds what, who waits
//	lockctl info deploy                    everything about one lock
//	lockctl break deploy                   end a holder that hangs
//	lockctl demo                           see it all work, without a server
//
// It uses nothing but the public packages, so whatever it does a service can do
// too. The exit codes are in exit.go, and in the help of each command.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// cli is the whole command line. The globals come before or after the command.
type cli struct {
	globals

	Run   runCmd   `cmd:"" help:"Run a command while holding a lock."`
	Ls    lsCmd    `cmd:"" aliases:"list" help:"List the locks that are held or waited for."`
	Info  infoCmd  `cmd:"" help:"Show everything about one lock."`
	Break breakCmd `cmd:"" help:"End somebody else's hold on a lock."`
	Demo  demoCmd  `cmd:"" help:"Show contention, a crash and a break on a server in this process."`

	// Processes that lockctl starts of itself; of no use by hand.
	Guard  guardCmd  `cmd:"" hidden:"" help:"End a process group when its lockctl dies."`
	Victim victimCmd `cmd:"" hidden:"" help:"The demo's worker that gets killed."`
}

// globals are the flags that every command has.
type globals struct {
	Server   string           `short:"s" env:"NATS_URL" default:"nats://127.0.0.1:4222" placeholder:"URL" help:"Servers to connect to, separated by commas (default ${default})."`
	Bucket   string           `env:"LOCKCTL_BUCKET" default:"natslock" placeholder:"NAME" help:"Bucket that holds the locks (default ${default})."`
	Creds    string           `env:"NATS_CREDS" type:"existingfile" placeholder:"FILE" help:"Credentials file."`
	Domain   string           `env:"LOCKCTL_DOMAIN" placeholder:"NAME" help:"JetStream domain the bucket is in."`
	Embedded bool             `help:"Use a server inside this process, its data under the user's cache directory."`
	Timeout  time.Duration    `default:"5s" placeholder:"DURATION" help:"Limit for connecting and for single requests (default ${default})."`
	Version  kong.VersionFlag `help:"Print the version."`
}

const description = `Locks among processes, kept in a NATS JetStream key-value bucket.

Exit codes: 64 usage, 69 no server, 75 the lock was lost, 77 no permission, 78 bucket not fit for locks, 70 anything else.`

func main() { os.Exit(mainCode(os.Args[1:])) }

// mainCode runs one command line and returns the exit code, after everything
// deferred has run.
func mainCode(args []string) int {
	setupColors()
	var c cli
	parser, err := kong.New(&c,
		kong.Name("lockctl"),
		kong.Description(description),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.Vars{"version": version()},
	)
	if err != nil {
		return report(err)
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		help := "lockctl --help"
		if parse, ok := errors.AsType[*kong.ParseError](err); ok && parse.Context != nil && parse.Context.Selected() != nil {
			help = "lockctl " + parse.Context.Selected().Name + " --help"
		}
		return report(usagef("%w; see %s", err, help))
	}
	if c.Timeout <= 0 {
		return report(usagef("--timeout %v: must be positive", c.Timeout))
	}
	return report(ctx.Run(&c.globals))
}

// version is what the build recorded: the module's version when installed by
// "go install", else the commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "lockctl (unknown build)"
	}
	v := info.Main.Version
	if v == "" || v == "(devel)" {
		v = "devel"
	}
	var commit, dirty string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = ", modified"
		}
	}
	if len(commit) > 12 {
		commit = commit[:12]
	}
	if commit != "" && !strings.Contains(v, commit) {
		v += fmt.Sprintf(" (%s%s)", commit, dirty)
	}
	return fmt.Sprintf("lockctl %s, %s", v, info.GoVersion)
}
