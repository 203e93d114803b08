package layout

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// entryPoints are the types whose methods users call, by package.
var entryPoints = map[string][]string{
	"natslock":       {"Client", "Lock", "LockSet"},
	"natslock/admin": {"Admin"},
	"rwlock":         {"RWLock"},
	"semaphore":      {"Semaphore"},
	"election":       {"Election", "Term"},
	"partition":      {"Group"},
	"fence":          {"Fence", "KV"},
	"kvstore":        {"Store"},
	"testutil":       nil,
	"locktest":       {"Locker"},
}

// TestExamples finds an example of each entry point: the functions of the public
// packages, and the methods of their main types. Functions that make an option are
// choices rather than entry points.
func TestExamples(t *testing.T) {
	for dir, types := range entryPoints {
		fset := token.NewFileSet()
		names, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		require.NoError(t, err)
		var files []*ast.File
		for _, name := range names {
			f, err := parser.ParseFile(fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
			require.NoError(t, err)
			files = append(files, f)
		}
		p, err := doc.NewFromFiles(fset, files, module+"/"+dir)
		require.NoError(t, err)
		entries := map[string][]*doc.Example{}
		for _, f := range p.Funcs {
			entries[f.Name] = f.Examples
		}
		for _, typ := range p.Types {
			for _, f := range typ.Funcs {
				entries[f.Name] = append(f.Examples, typ.Examples...)
			}
			for _, m := range typ.Methods {
				if slices.Contains(types, typ.Name) {
					entries[typ.Name+"."+m.Name] = m.Examples
				}
			}
			for _, f := range typ.Funcs {
				if strings.HasSuffix(typ.Name, "Option") {
					delete(entries, f.Name)
				}
			}
		}
		delete(entries, "Goroutines")
		require.NotEmpty(t, entries)
		for name, examples := range entries {
			require.NotEmpty(t, examples, "%s.%s has no Example", dir, name)
		}
	}
}
