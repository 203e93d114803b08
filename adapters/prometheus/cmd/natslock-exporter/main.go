// Command natslock-exporter serves Prometheus metrics for all locks in a bucket, no matter which
// client holds them, and a web page that shows the locks. It lists the locks, follows them with a
// single watch, and checks that the bucket still has a leader.
//
//	natslock-exporter                                     the bucket natslock
//	natslock-exporter --pattern 'orders.>' --pattern '>'  two series instead of one per first token
//	natslock-exporter --listen 127.0.0.1:9622             metrics only for this machine
//	natslock-exporter --no-page                           metrics only
//
// It finds its server through flags, NATS_* variables and contexts, like lockctl and the nats
// command. It takes no locks and writes nothing.
//
// /metrics serves the metrics. /healthz returns 200 while the exporter follows the bucket, the
// bucket has a leader, and clients can get locks in it. Otherwise it returns 503 with the reason.
//
// The page has its own address, 127.0.0.1:9623 unless --page says otherwise, because scrapers
// connect from other machines, but not everyone should see names, owners and metadata. It is
// read-only and has no login, so anyone who can reach the address sees everything that the
// exporter's NATS user is allowed to read.
//
// # What it knows
//
// Counts and ages come from the records in the bucket, so they cover locks of clients that export
// no metrics themselves. An age is the difference between the exporter's clock and that of the
// holder or waiter. A record stands for a client: goroutines that wait in one process share one
// place in the queue.
//
// Counters count notifications, so they miss what happens while the exporter has no connection;
// natslock_exporter_gaps_total counts these gaps. Any user that is allowed to publish to the
// bucket's notification subjects can forge events.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/natslock/locks/internal/tool"
)

// cli holds the command-line flags.
type cli struct {
	Bucket   string   `env:"LOCKCTL_BUCKET" default:"natslock" placeholder:"NAME" help:"Bucket that holds the locks (default ${default})."`
	Names    string   `type:"name" default:">" placeholder:"PATTERN" help:"Locks to count; \"*\" matches one token, a final \">\" all remaining ones (default all)."`
	Pattern  []string `type:"name" sep:"none" placeholder:"PATTERN" help:"Count matching locks under this label; repeatable, and the first match wins. Other locks get the label \"other\". Without patterns, the label is the first token of the name."`
	Listen   string   `env:"NATSLOCK_EXPORTER_LISTEN" default:":9622" placeholder:"ADDRESS" help:"Address to serve /metrics and /healthz on (default ${default})."`
	Page     string   `env:"NATSLOCK_EXPORTER_PAGE" default:"127.0.0.1:9623" placeholder:"ADDRESS" help:"Address to serve a read-only page of the locks on (default ${default}; empty for none). The page has no login."`
	PageHost []string `placeholder:"NAME" help:"Host name by which browsers reach the page, such as that of a proxy; repeatable. IP addresses and localhost need none."`
	NoPage   bool     `help:"Do not serve the page."`

	tool.Connection `embed:"" group:"connection"`
	Version         kong.VersionFlag `help:"Print the version."`
}

// defaultPage is the default address of the page.
const defaultPage = "127.0.0.1:9623"

const description = `Serves Prometheus metrics of all locks in a bucket, and a page that shows them.

Exit codes:
  64 usage   69 no server   77 no permission   78 no bucket, or not fit for locks
  70 anything else`

func main() { os.Exit(mainCode(os.Args[1:])) }

// mainCode runs one command line and returns the exit code.
func mainCode(args []string) int {
	var c cli
	parser, err := newParser(&c)
	if err != nil {
		return report(err)
	}
	if err := tool.CheckArguments(args); err != nil {
		return report(err)
	}
	ctx, err := parser.Parse(args)
	if err != nil {
		return report(tool.Usagef("%w; see natslock-exporter --help", err))
	}
	c.Parsed(ctx)
	if err := c.Verify(); err != nil {
		return report(err)
	}
	running, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	return report(c.run(running, log))
}

// newParser returns the parser that fills in c.
func newParser(c *cli) (*kong.Kong, error) {
	return kong.New(c,
		kong.Name("natslock-exporter"),
		kong.Description(description),
		tool.Names,
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.ExplicitGroups([]kong.Group{{Key: "connection", Title: "Connection (as for lockctl and the nats command):"}}),
		kong.Vars{"version": version()},
	)
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "natslock-exporter (unknown build)"
	}
	return fmt.Sprintf("natslock-exporter %s, %s", info.Main.Version, info.GoVersion)
}

// report prints the error and returns its exit code.
func report(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(os.Stderr, "natslock-exporter: %v\n", err)
	return tool.CodeOf(err)
}
