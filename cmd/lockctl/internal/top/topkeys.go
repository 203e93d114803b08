package top

import (
	"charm.land/bubbles/v2/key"
)

// topKeys are the key bindings of top.
var topKeys = struct {
	Up, Down, PageUp, PageDown, Home, End            key.Binding
	Open, Back, Filter, Sort, Reverse                key.Binding
	Break, BreakNow, Yes, Help, Quit, Leave, Suspend key.Binding
}{
	Up:       bind("up/k", "up", "up", "k"),
	Down:     bind("down/j", "down", "down", "j"),
	PageUp:   bind("pgup", "a page up", "pgup", "ctrl+b"),
	PageDown: bind("pgdn", "a page down", "pgdown", "ctrl+f", "space"),
	Home:     bind("home/g", "first", "home", "g"),
	End:      bind("end/G", "last", "end", "G"),
	Open:     bind("enter", "open", "enter"),
	Back:     bind("esc", "back", "esc"),
	Filter:   bind("/", "filter", "/"),
	Sort:     bind("s", "sort", "s"),
	Reverse:  bind("r", "reverse", "r"),
	Break:    bind("b", "break", "b"),
	BreakNow: bind("B", "break, next in at once", "B"),
	Yes:      bind("y", "yes", "y"),
	Help:     bind("?", "help", "?"),
	Quit:     bind("q", "quit", "q"),
	Leave:    bind("ctrl+c", "quit", "ctrl+c"),
	Suspend:  bind("ctrl+z", "suspend", "ctrl+z"),
}

func bind(name, help string, keys ...string) key.Binding {
	return key.NewBinding(key.WithKeys(keys...), key.WithHelp(name, help))
}

// keysOf returns the keys that work on a screen, most useful first.
func keysOf(s topScreen) []key.Binding {
	k := topKeys
	switch s {
	case screenLock:
		return []key.Binding{k.Back, k.Break, k.BreakNow, k.Up, k.Down, k.Help, k.Quit}
	case screenChoose:
		return []key.Binding{k.Up, k.Down, k.Open, k.Back}
	case screenHelp:
		return []key.Binding{k.Back, k.Quit}
	}
	return []key.Binding{k.Open, k.Filter, k.Sort, k.Reverse, k.Break, k.Help, k.Quit}
}

// allKeys returns the keys for the help screen, in columns.
func allKeys() [][]key.Binding {
	k := topKeys
	return [][]key.Binding{
		{k.Up, k.Down, k.PageUp, k.PageDown, k.Home, k.End},
		{k.Open, k.Back, k.Filter, k.Sort, k.Reverse},
		{k.Break, k.BreakNow, k.Help, k.Quit, k.Suspend},
	}
}
