package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"
	"github.com/posener/complete"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/partition"
)

// completionLimit is the default timeout for completing lock names. Users will not wait longer
// after a keystroke.
const completionLimit = time.Second

// completionCmd is the completion library's command. The library's scripts for bash and zsh
// complete paths where lockctl offers nothing. completionCmd adds a script for fish that does
// the same, and also completes the command after "--".
type completionCmd struct {
	kongcompletion.Completion `embed:""`
}

// Help replaces the library's help text.
func (*completionCmd) Help() string {
	return `Prints the command that turns completion on in this shell. Put it into the shell's init
file to keep completion on. Without a shell, lockctl detects your login shell.`
}

// Run prints the completion script for the shell.
func (c *completionCmd) Run(ctx *kong.Context) error {
	if c.Shell != "fish" || !c.Code {
		return c.Completion.Run(ctx)
	}
	bin, err := os.Executable()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(ctx.Stdout, fishCode, "'"+strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(bin)+"'")
	return err
}

const fishCode = `function __complete_lockctl
    set -lx COMP_LINE (commandline -cp)
    test -z (commandline -ct)
    and set COMP_LINE "$COMP_LINE "
    set -l answers (%s)
    if set -q answers[1]
        printf '%%s\n' $answers
    else if string match -q -- '* -- *' "$COMP_LINE"
        complete -C (string replace -r -- '^.*? -- ' '' "$COMP_LINE")
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -f -c lockctl -a "(__complete_lockctl)"
`

// completed prints completions if a shell has requested them, and reports whether one has. It
// prints nothing else, because an error message would garble the line being typed.
func completed(con *console.Console, parser *kong.Kong) bool {
	line := con.Getenv("COMP_LINE")
	if line == "" {
		return false
	}
	con.Complaints = io.Discard
	root, err := kongcompletion.Command(parser, kongcompletion.WithPredictor("lock",
		complete.PredictFunc(func(complete.Args) []string { return namesOf(con, line, lockNames) })),
		kongcompletion.WithPredictor("group", complete.PredictFunc(func(complete.Args) []string { return namesOf(con, line, groupNames) })))
	if err != nil {
		return true
	}
	// To locate a command's arguments, the library skips only the command's own flags, so add
	// the flags that every command has.
	if all, ok := root.Args.(*kongcompletion.PositionalPredictor); ok {
		for _, sub := range root.Sub {
			if p, ok := sub.Args.(*kongcompletion.PositionalPredictor); ok {
				p.ArgFlags = append(p.ArgFlags, all.ArgFlags...)
				p.BoolFlags = append(p.BoolFlags, all.BoolFlags...)
			}
		}
	}
	complete.New(parser.Model.Name, root).Complete()
	return true
}

// typable matches names that need no quoting in any shell. Other names are not offered, because
// quoting differs between shells and a lock's name must never run as a command.
var typable = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./,+%-]*$`)

// namesOf calls of with the locks on the server that line refers to, and keeps only names that
// need no quoting. It returns nil if the server does not respond in time.
func namesOf(con *console.Console, line string, of func([]admin.Info) []string) []string {
	var c cli
	parser, err := newParser(con, &c)
	if err != nil {
		return nil
	}
	ctx, err := parser.Parse(append(globalFlags(parser, line), "ls"))
	if err != nil {
		return nil
	}
	c.Parsed(ctx)
	if !c.Given("timeout") && con.Getenv("NATS_TIMEOUT") == "" {
		c.Timeout = completionLimit
	}
	answer := make(chan []string, 1)
	go func() {
		infos, _ := locksAt(&c.Globals)
		names := of(infos)
		answer <- slices.DeleteFunc(names, func(name string) bool { return !typable.MatchString(name) })
	}()
	select {
	case names := <-answer:
		return names
	case <-time.After(c.Timeout): // each connection attempt and each request may take that long
		return nil
	}
}

func locksAt(g *session.Globals) ([]admin.Info, error) {
	s, err := g.Open()
	if err != nil {
		return nil, err
	}
	defer s.End()
	return (&lsCmd{Pattern: ">"}).list(g, s)
}

func lockNames(infos []admin.Info) (names []string) {
	for _, info := range infos {
		names = append(names, info.Name)
	}
	return slices.Compact(names)
}

func groupNames(infos []admin.Info) (names []string) {
	for _, group := range partition.Groups(infos) {
		names = append(names, group.Group)
	}
	return names
}

// globalFlags returns the global flags in line, with their values.
func globalFlags(parser *kong.Kong, line string) (flags []string) {
	known := make(map[string]*kong.Flag)
	for _, f := range parser.Model.Flags {
		for _, name := range append([]string{f.Name}, f.Aliases...) {
			known["--"+name] = f
		}
		if f.Short != 0 {
			known["-"+string(f.Short)] = f
		}
	}
	words := strings.Fields(line)
	for i, word := range words {
		if word == "--" {
			break
		}
		name, _, whole := strings.Cut(word, "=")
		f := known[name]
		switch {
		case f == nil || f.Name == "help" || f.Name == "version":
		case whole || f.IsBool():
			flags = append(flags, word)
		case i+1 < len(words):
			flags = append(flags, word, words[i+1])
		}
	}
	return flags
}
