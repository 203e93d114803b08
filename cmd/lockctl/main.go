// Command lockctl runs commands under natslock locks, and inspects and breaks those locks.
//
//	lockctl run deploy -- ./deploy.sh      run a command under a lock
//	lockctl run --read index -- ./query    share a lock with other readers
//	lockctl elect scheduler -- ./serve     run a command on one of several machines
//	lockctl acquire deploy                 hold a lock across several commands of a script
//	lockctl ls 'orders.>'                  list holders and queues
//	lockctl info deploy                    show one lock in detail
//	lockctl watch 'orders.>'               print a line for each event
//	lockctl history deploy                 show what has happened to a lock
//	lockctl top                            show all locks live, full screen
//	lockctl break deploy                   take a lock away from a hung holder
//	lockctl demo                           see all this in action, without a server
//
// Like the nats command, lockctl finds its server through flags, NATS_* variables and contexts.
// "lockctl run" exits with the exit code of the command it ran. lockctl itself exits with 1 if
// a lock was not free in time, and with the codes of sysexits.h, 64 and above, for other
// failures. "lockctl --help" lists them, and each command's help adds its own.
//
// lockctl works with locks through the public packages, so a service can do the same. Script
// locks, which no process renews, are implemented in package internal/script.
package main

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/demo"
	"github.com/natslock/locks/cmd/lockctl/internal/doctor"
	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/cmd/lockctl/internal/supervise"
	"github.com/natslock/locks/cmd/lockctl/internal/top"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
)

// cli is the command line. Global flags may precede or follow the command.
type cli struct {
	session.Globals
	HelpConnection connectionHelp `help:"Show the connection flags, such as -s URL and --context NAME."`

	Run     runCmd     `cmd:"" group:"take" help:"Run a command while holding a lock."`
	Elect   electCmd   `cmd:"" group:"take" help:"Run a command while leading."`
	Acquire acquireCmd `cmd:"" group:"take" help:"Take a lock for a script, and print its handle."`
	Extend  extendCmd  `cmd:"" group:"take" help:"Renew a script's lock for a full TTL."`
	Release releaseCmd `cmd:"" group:"take" help:"Release a script's lock."`

	Ls         lsCmd          `cmd:"" group:"see" aliases:"list" help:"List the locks that are held or waited for."`
	Info       infoCmd        `cmd:"" group:"see" help:"Show everything about one lock."`
	Partitions partitionsCmd  `cmd:"" group:"see" help:"Show who owns the partitions of a group of workers."`
	Check      checkCmd       `cmd:"" group:"see" help:"Compare locks with limits, for a monitoring system."`
	Break      breakCmd       `cmd:"" group:"care" help:"End another client's hold on a lock."`
	Init       initCmd        `cmd:"" group:"care" help:"Create the bucket, or repair an existing one."`
	Doctor     doctor.Command `cmd:"" group:"care" help:"Check everything that locks depend on."`
	Demo       demo.Command   `cmd:"" group:"begin" help:"Show contention, a crash and a break on a server in this process."`
	Perms      permsCmd       `cmd:"" group:"care" help:"Print the NATS permissions that a user of locks needs."`
	Server     serverCmd      `cmd:"" group:"begin" help:"Run a server with JetStream for development."`

	Completion completionCmd `cmd:"" group:"begin" help:"Let the shell complete commands, flags and the names of locks."`
	Watch      watchCmd      `cmd:"" group:"see" help:"Print the events of locks as they happen."`
	History    historyCmd    `cmd:"" group:"see" help:"Show what happened to a lock."`
	Top        top.Command   `cmd:"" group:"see" help:"Show locks, holders and queues live, full screen."`

	// Hidden commands, which are run by lockctl itself or by go generate rather than by hand.
	Guard     supervise.Guard `cmd:"" hidden:"" help:"End a process group when its lockctl dies."`
	Reference referenceCmd    `cmd:"" hidden:"" help:"Write the reference as Markdown."`
	Victim    demo.Victim     `cmd:"" hidden:"" help:"The demo's worker that gets killed."`
}

const description = `Distributed locks, kept in a NATS JetStream key-value bucket.

Exit codes:
  64 usage   69 no server   75 the lock was lost   77 no permission
  78 no bucket, or one unfit for locks   70 anything else`

func main() {
	show.SetupColors()
	os.Exit(mainCode(console.OfProcess(supervise.Signals), os.Args[1:]))
}

// ended is the value that the parser panics with after --help or --version, to end the run.
type ended struct{ code int }

// mainCode runs a command line and returns its exit code, so that all deferred calls have run
// before the process exits.
func mainCode(con *console.Console, args []string) (code int) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case ended:
			code = r.code
		default:
			panic(r)
		}
	}()
	var c cli
	parser, err := newParser(con, &c)
	if err != nil {
		return con.Report(err)
	}
	if completed(con, parser) {
		return 0
	}
	if err := tool.CheckArguments(args); err != nil {
		return con.Report(err)
	}
	ctx, err := parser.Parse(args)
	if con.Out.Err != nil { // printing the help failed
		return con.Report(con.Out.Err)
	}
	if err != nil {
		help := "lockctl --help"
		if parse, ok := errors.AsType[*kong.ParseError](err); ok && parse.Context != nil && parse.Context.Selected() != nil {
			help = "lockctl " + parse.Context.Selected().Name + " --help"
		}
		return con.Report(tool.Usagef("%w; see %s", ofArgument(err), help))
	}
	c.Parsed(ctx)
	if err := c.Verify(); err != nil {
		return con.Report(err)
	}
	return con.Report(con.End(ctx.Run(&c.Globals)))
}

// ofArgument rewords the parser's error about an invalid handle to say where handles come from.
// It returns other errors unchanged.
func ofArgument(err error) error {
	why, ok := strings.CutPrefix(err.Error(), "<handle>: ")
	if !ok {
		return err
	}
	if _, text, ok := strings.Cut(why, natslock.ErrInvalid.Error()+": "); ok {
		why = text + ": a handle is the word that \"lockctl acquire\" prints; it begins with natslock-script-"
	}
	return errors.New(why)
}

// newParser returns a parser that fills c and writes to con.
func newParser(con *console.Console, c *cli) (*kong.Kong, error) {
	c.Console = con
	parser, err := kong.New(c,
		kong.Name("lockctl"),
		kong.Description(description),
		show.Durations,
		tool.Names,
		kong.Writers(con.Out, con.Stderr),
		kong.Exit(func(code int) { // after --help and --version
			if err := con.End(nil); err != nil {
				code = con.Report(err)
			}
			panic(ended{code})
		}),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.ExplicitGroups([]kong.Group{
			{Key: "connection", Title: "Connection, as for the nats command:"},
			{Key: "take", Title: "Take a lock:"}, {Key: "see", Title: "See what is locked:"},
			{Key: "care", Title: "Maintain locks and their bucket:"}, {Key: "begin", Title: "Get started:"},
		}),
		kong.Help(shortHelp),
		kong.Vars{"version": version()},
		kong.ValueFormatter(withVariable),
	)
	if err != nil {
		return nil, err
	}
	for _, flag := range parser.Model.Flags {
		useEnv(con, flag)
	}
	return parser, nil
}

// shortHelp prints help that fits on one screen. It leaves out the connection flags, which
// every command has and --help-connection shows, and shows --version only if no command is
// selected.
func shortHelp(options kong.HelpOptions, ctx *kong.Context) error {
	for _, flag := range ctx.Model.Flags {
		flag.Hidden = flag.Hidden || flag.Group != nil && flag.Group.Key == "connection" || flag.Name == "version" && ctx.Selected() != nil
	}
	return kong.DefaultHelpPrinter(options, ctx)
}

// connectionHelp is a flag that prints help for the connection flags, which --help leaves out.
type connectionHelp bool

// BeforeReset prints the help and exits before kong checks the rest of the command line.
func (connectionHelp) BeforeReset(app *kong.Kong) error {
	fmt.Fprintln(app.Stdout, "Connection, as for the nats command:")
	for _, flag := range app.Model.Flags {
		if flag.Group == nil || flag.Group.Key != "connection" {
			continue
		}
		name := "    --" + flag.Name
		if flag.Short != 0 {
			name = "-" + string(flag.Short) + ", --" + flag.Name
		}
		if !flag.IsBool() {
			name += "=" + flag.FormatPlaceHolder()
		}
		fmt.Fprintf(app.Stdout, "  %-26s %s\n", name, withVariable(flag.Value))
	}
	app.Exit(0)
	return nil
}

// useEnv makes flag take its default from con's environment. On its own, the parser would read
// the process's environment.
func useEnv(con *console.Console, flag *kong.Flag) {
	names := flag.Envs
	flag.Tag.Envs = nil
	for _, name := range names {
		if value, ok := con.LookupEnv(name); ok {
			flag.HasDefault, flag.Default = true, value
			mapper := flag.Mapper
			flag.Mapper = kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
				from := fmt.Sprint(ctx.Scan.Peek().Value)
				err := mapper.Decode(ctx, target)
				if err != nil && from == value {
					err = fmt.Errorf("%w (from envar %s=%q)", err, name, value)
				}
				return err
			})
			return
		}
	}
}

// withVariable returns a flag's help text with the names of its environment variables appended.
func withVariable(value *kong.Value) string {
	if value.Flag == nil || len(value.Flag.Envs) == 0 || kong.HasInterpolatedVar(value.OrigHelp, "env") {
		return value.Help
	}
	help, dot := strings.CutSuffix(value.Help, ".")
	help += " ($" + strings.Join(value.Flag.Envs, ", $") + ")"
	if dot {
		help += "."
	}
	return help
}

// version returns lockctl's module version, VCS commit and Go version.
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
