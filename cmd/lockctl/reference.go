package main

import (
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
)

//go:generate go run . reference ../../docs/operate/lockctl.md

// referenceCmd writes the help for all commands to a Markdown page.
type referenceCmd struct {
	File string `arg:"" type:"path" help:"Where to write it."`
}

func (c *referenceCmd) Run(ctx *kong.Context) error {
	var b strings.Builder
	writeReference(&b, ctx.Model)
	return os.WriteFile(c.File, []byte(b.String()), 0o644)
}

func writeReference(w io.Writer, app *kong.Application) {
	p := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	p("<!-- Written by \"go generate ./cmd/lockctl\" from the commands. Do not edit. -->\n")
	p("# lockctl\n\n%s", markdown(app.Help))
	p("## Flags of every command\n")
	writeFlags(w, app.Flags)
	for _, cmd := range app.Children {
		if cmd.Hidden {
			continue
		}
		p("## lockctl %s\n\n%s\n", cmd.Name, cmd.Help)
		p("```text\nlockctl %s\n```\n", usage(cmd))
		p("%s", markdown(cmd.Detail))
		for _, arg := range cmd.Positional {
			p("- `%s`: %s", arg.Name, arg.Help)
		}
		if len(cmd.Positional) > 0 {
			p("")
		}
		writeFlags(w, cmd.Flags)
	}
	p("## JSON\n\nFields are added, never renamed or removed. Times are RFC 3339 in UTC, durations are seconds.\n" +
		"Times have fractions of a second, which the `fromdate` of jq refuses:\nwrite `sub(\"\\\\.[0-9]+\"; \"\") | fromdate`.\n")
	ofLocks, ofGap := show.Shapes()
	for _, object := range append(append(ofLocks, show.GroupShapes()...),
		show.Shape{Title: "A handle, of acquire and extend", Of: handleJSON{}},
		ofGap) {
		p("### %s\n", object.Title)
		p("| field | |\n|---|---|")
		for _, f := range reflect.VisibleFields(reflect.TypeOf(object.Of)) {
			if !f.Anonymous {
				p("| `%s` | %s |", f.Tag.Get("json"), cell(f.Tag.Get("doc")))
			}
		}
		p("")
	}
}

// usage returns the synopsis of a command.
func usage(cmd *kong.Node) string {
	parts := []string{cmd.Name, "[flags]"}
	for _, arg := range cmd.Positional {
		parts = append(parts, arg.Summary())
	}
	return strings.Join(parts, " ")
}

// writeFlags writes a table of flags, with a column for environment variables if any flag has
// one.
func writeFlags(w io.Writer, flags []*kong.Flag) {
	flags = slices.DeleteFunc(slices.Clone(flags), func(f *kong.Flag) bool { return f.Hidden })
	if len(flags) == 0 {
		return
	}
	variables := slices.ContainsFunc(flags, func(f *kong.Flag) bool { return len(f.Envs) > 0 })
	if variables {
		fmt.Fprintf(w, "| flag | variable | |\n|---|---|---|\n")
	} else {
		fmt.Fprintf(w, "| flag | |\n|---|---|\n")
	}
	for _, f := range flags {
		name := "`--" + f.Name
		if !f.IsBool() {
			name += "=" + f.FormatPlaceHolder()
		}
		name += "`"
		if f.Short != 0 {
			name = "`-" + string(f.Short) + "`, " + name
		}
		name = cell(name)
		if variables {
			name += " | "
			for _, env := range f.Envs {
				name += "`" + env + "`"
			}
		}
		fmt.Fprintf(w, "| %s | %s |\n", name, cell(f.Help))
	}
	fmt.Fprintln(w)
}

// cell escapes s for use in a table cell.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ").Replace(s)
}

// markdown converts help text to Markdown, turning indented lines into code blocks.
func markdown(help string) string {
	var b strings.Builder
	code := false
	for line := range strings.SplitSeq(strings.TrimSpace(help), "\n") {
		indented := strings.HasPrefix(line, "  ")
		if indented != code {
			b.WriteString("```")
			if indented {
				b.WriteString(language(line))
			}
			b.WriteString("\n")
			code = indented
		}
		b.WriteString(strings.TrimPrefix(line, "  ") + "\n")
	}
	if code {
		b.WriteString("```\n")
	}
	return b.String()
}

// language guesses a code block's language from its first line.
func language(line string) string {
	first, _, _ := strings.Cut(strings.TrimSpace(line), " ")
	if first == "lockctl" || strings.Contains(first, "=$(") {
		return "sh"
	}
	return "text"
}
