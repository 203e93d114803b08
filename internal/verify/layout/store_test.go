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

// storeRooms are the files of internal/kvstore, lowest first. What a file declares is used in its own
// room and above.
var storeRooms = [][]string{
	{"doc", "errors", "kv", "key"},
	{"config", "settings", "level", "finding", "room", "clock"},
	{"line", "sender", "request", "health"},
	{"store", "open", "read", "direct", "list", "watch", "write", "notified"},
	{"history", "historyread"},
	{"memory"},
}

// noPackage imports nothing: the arrows inside of a package need no other one.
type noPackage struct{}

func (noPackage) Import(string) (*types.Package, error) { return nil, errors.New("not needed") }

// arrows returns what files of a package use of other files of it, as "from to name".
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

// upward returns the arrows to a higher room.
func upward(all []string) (wrong []string) {
	room := func(file string) int {
		return slices.IndexFunc(storeRooms, func(files []string) bool { return slices.Contains(files, file) })
	}
	for _, a := range all {
		if f := strings.Fields(a); room(f[0]) < room(f[1]) {
			wrong = append(wrong, a)
		}
	}
	return wrong
}

// TestStoreRooms: the arrows between the rooms of the store run one way.
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
	known := slices.Concat(storeRooms...)
	for file := range texts {
		require.Contains(t, known, file, "in no room")
	}
	require.Len(t, texts, len(known), "rooms name files that are not there")
	all := arrows(t, texts, dir)
	require.Contains(t, all, "list request await")
	require.Contains(t, all, "write health sending", "a method of the line, which the store embeds")
	require.Empty(t, upward(all))

	found := arrows(t, map[string]any{
		"line":  `package p; import "nats"; type line struct { nc *nats.Conn; up func() }; func (l *line) publish() { l.nc.Publish(rest()) }`,
		"store": `package p; type Store struct { *line }; func rest() string { return "" }; func (s *Store) write() { s.publish() }`,
	}, dir)
	require.Equal(t, []string{"line store rest"}, upward(found))
	require.Contains(t, found, "store line publish")
}
