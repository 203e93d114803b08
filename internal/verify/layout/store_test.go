package layout_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// storeRooms lists the rooms of internal/kvstore with their files, lowest floor first. What a file declares is used in
// its own room and on the floors above. Rooms on the same floor do not know each other, and no files depend on each
// other in a cycle.
var storeRooms = [][]string{
	{"doc errors kv key options"},
	{"config settings level finding room clock tracking"},
	{"sender inflight line request health", "memory"},
	{"stream record"},
	{"read list", "write", "watch notified", "history historypage"},
	{"store open"},
}

// noPackage imports nothing, because arrows within a package need no other package.
type noPackage struct{}

func (noPackage) Import(string) (*types.Package, error) { return nil, errors.New("not needed") }

// arrows returns what files of a package use from its other files, as "from to name".
func arrows(t *testing.T, texts map[string]any, dir string) (all []string) {
	fset := token.NewFileSet()
	var files []*ast.File
	for name, text := range texts {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name+".go"), text, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, f)
	}
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	conf := types.Config{Importer: noPackage{}, Error: func(error) {}}
	pkg, _ := conf.Check("p", fset, files, info)
	file := func(pos token.Pos) string {
		return strings.TrimSuffix(filepath.Base(fset.Position(pos).Filename), ".go")
	}
	for id, used := range info.Uses {
		if from := file(id.Pos()); used.Pkg() == pkg && file(used.Pos()) != from {
			all = append(all, from+" "+file(used.Pos())+" "+used.Name())
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// roomOf returns the floor and room of a store file, or -1 and "" if it has none.
func roomOf(file string) (floor int, room string) {
	for floor, rooms := range storeRooms {
		for _, room := range rooms {
			if slices.Contains(strings.Fields(room), file) {
				return floor, room
			}
		}
	}
	return -1, ""
}

// forbidden returns the arrows to a higher floor, or to another room on the same floor.
func forbidden(all []string) (wrong []string) {
	for _, a := range all {
		f := strings.Fields(a)
		from, room := roomOf(f[0])
		to, other := roomOf(f[1])
		if from < to || from == to && room != other {
			wrong = append(wrong, a)
		}
	}
	return wrong
}

// circular returns the arrows of files that depend on each other in a cycle, and of files that depend on those.
func circular(all []string) []string {
	for {
		leads := func(file string) bool {
			return slices.ContainsFunc(all, func(a string) bool { return strings.HasPrefix(a, file+" ") })
		}
		left := slices.DeleteFunc(slices.Clone(all), func(a string) bool { return !leads(strings.Fields(a)[1]) })
		if len(left) == len(all) {
			return left
		}
		all = left
	}
}

// TestStoreRooms checks that the arrows between the store's files run one way.
func TestStoreRooms(t *testing.T) {
	dir := filepath.Join("..", "..", "kvstore")
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	texts := make(map[string]any)
	for _, name := range names {
		if file, ok := strings.CutSuffix(filepath.Base(name), ".go"); ok && !strings.HasSuffix(file, "_test") {
			texts[file] = nil
		}
	}
	known := strings.Fields(strings.Join(slices.Concat(storeRooms...), " "))
	for file := range texts {
		require.Contains(t, known, file, "in no room")
	}
	require.Len(t, texts, len(known), "rooms name files that are not there")
	all := arrows(t, texts, dir)
	require.Contains(t, all, "list request await")
	require.Contains(t, all, "write inflight sending", "a method of the line, which the writer has through the stream")
	require.Empty(t, forbidden(all))
	require.Empty(t, circular(all))

	found := arrows(t, map[string]any{
		"line":  `package p; import "nats"; type line struct { nc *nats.Conn; up func() }; func (l *line) publish() { l.nc.Publish(rest()) }`,
		"write": `package p; type writer struct { *line }; func rest() string { return "" }; func (w *writer) write() { w.publish() }`,
		"watch": `package p; type watcher struct { w *writer }`,
	}, dir)
	require.Equal(t, []string{"line write rest", "watch write writer"}, forbidden(found))
	require.Contains(t, found, "write line publish")
	require.Equal(t, []string{"line write rest", "write line line", "write line publish"}, circular(slices.DeleteFunc(found, func(a string) bool { return a[:2] == "wa" })))
}
