package main

import (
	"slices"

	"github.com/alecthomas/kong"
)

// introspect is the argument with which the nats command asks a plugin for its commands.
const introspect = "--fisk-introspect"

// pluginCommands are those that "nats lock" has. A plugin loses its exit code, and the nats
// command takes "--" for itself, so what runs or holds something is not among them.
var pluginCommands = []string{"break", "history", "info", "ls", "watch"}

// The nats command expects the model of the library fisk of its plugins.
type (
	pluginModel struct {
		Name     string          `json:"name"`
		Help     string          `json:"help"`
		Commands []pluginCommand `json:"commands"`
	}
	pluginCommand struct {
		Name     string       `json:"name"`
		Aliases  []string     `json:"aliases,omitempty"`
		Help     string       `json:"help"`
		HelpLong string       `json:"help_long,omitempty"`
		Flags    []pluginFlag `json:"flags,omitempty"`
		Args     []pluginArg  `json:"args,omitempty"`
	}
	pluginFlag struct {
		Name        string `json:"name"`
		Help        string `json:"help"`
		Short       rune   `json:"short,omitempty"`
		PlaceHolder string `json:"place_holder,omitempty"`
		Boolean     bool   `json:"boolean"`
		Cumulative  bool   `json:"cumulative"`
	}
	pluginArg struct {
		Name       string `json:"name"`
		Help       string `json:"help"`
		Required   bool   `json:"required,omitempty"`
		Cumulative bool   `json:"cumulative"`
	}
)

// asPlugin is the model of lockctl as a plugin.
//
// The flags of every command stand with each command. Those of the plugin itself would not
// reach a command. The nats command passes on its own flags, as --server and --context, if
// the command has flags of the same names. Defaults and variables are left to lockctl.
func asPlugin(app *kong.Application) pluginModel {
	m := pluginModel{Name: "lock", Help: "Locks among processes, kept in a JetStream key-value bucket"}
	for _, cmd := range app.Children {
		if !slices.Contains(pluginCommands, cmd.Name) {
			continue
		}
		c := pluginCommand{Name: cmd.Name, Aliases: cmd.Aliases, Help: cmd.Help, HelpLong: cmd.Detail}
		for _, f := range slices.Concat(cmd.Flags, app.Flags) {
			if f.Hidden || f.Name == "help" || f.Name == "version" {
				continue
			}
			flag := pluginFlag{Name: f.Name, Help: f.Help, Boolean: f.IsBool(), Cumulative: f.IsCumulative()}
			if !f.IsBool() {
				flag.PlaceHolder = f.FormatPlaceHolder()
			}
			if f.Group == nil { // "-s" is --server of the nats command as well
				flag.Short = f.Short
			}
			c.Flags = append(c.Flags, flag)
		}
		for _, a := range cmd.Positional {
			c.Args = append(c.Args, pluginArg{Name: a.Name, Help: a.Help, Required: a.Required, Cumulative: a.IsCumulative()})
		}
		m.Commands = append(m.Commands, c)
	}
	return m
}
