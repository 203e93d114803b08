package layout

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// entryPoints lists the public packages and the types whose methods users call.
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

// public returns a package's documentation, including its examples.
func public(t *testing.T, dir string) *doc.Package {
	t.Helper()
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
	return p
}

// TestExamples checks that each entry point has an example: the functions of the public packages
// and the methods of their main types. Functions that create an option are choices rather than
// entry points.
func TestExamples(t *testing.T) {
	for dir, types := range entryPoints {
		p := public(t, dir)
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
		require.NotEmpty(t, entries)
		for name, examples := range entries {
			require.NotEmpty(t, examples, "%s.%s has no Example", dir, name)
		}
	}
}

// declared returns the exported top-level names of a package, and its methods as Type.Method.
func declared(p *doc.Package) (names []string) {
	values := func(all []*doc.Value) {
		for _, v := range all {
			names = append(names, v.Names...)
		}
	}
	funcs := func(prefix string, all []*doc.Func) {
		for _, f := range all {
			names = append(names, prefix+f.Name)
		}
	}
	values(p.Consts)
	values(p.Vars)
	funcs("", p.Funcs)
	for _, typ := range p.Types {
		names = append(names, typ.Name)
		values(typ.Consts)
		values(typ.Vars)
		funcs("", typ.Funcs)
		funcs(typ.Name+".", typ.Methods)
	}
	return names
}

// TestPublicNames checks that pages for users name only functions, types and errors that the
// public packages have, and methods that their main types have.
func TestPublicNames(t *testing.T) {
	names := map[string]bool{}
	for dir, types := range entryPoints {
		p := public(t, dir)
		names[p.Name] = true
		for _, typ := range types {
			names[typ] = true
		}
		for _, name := range declared(p) {
			names[p.Name+"."+name] = true
			names[name] = strings.Contains(name, ".") || names[name]
		}
	}
	named := regexp.MustCompile("`(\\w+)\\.([A-Z]\\w*)")
	for page, text := range documents(t) {
		if page != "README.md" && !strings.HasPrefix(page, "docs/guide/") && !strings.HasPrefix(page, "docs/operate/") && !strings.HasPrefix(page, "adapters/") {
			continue
		}
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			assert.True(t, !names[m[1]] || names[m[1]+"."+m[2]], "%s names %s.%s", page, m[1], m[2])
		}
	}
}

// TestTroubleshooting checks that the tables of the guide list every exported error and nothing
// that the code does not have.
func TestTroubleshooting(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/guide/troubleshooting.md"))
	require.NoError(t, err)
	var wanted []string
	for dir := range entryPoints {
		for _, name := range declared(public(t, dir)) {
			if strings.HasPrefix(name, "Err") {
				wanted = append(wanted, dir+"."+name)
			}
		}
	}
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+\\.Err\\w+)` \\|").FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, row[1])
	}
	require.NotEmpty(t, wanted)
	require.ElementsMatch(t, wanted, listed)
}

// TestExitCodes checks that lockctl's reference lists each of its exit codes.
func TestExitCodes(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/operate/lockctl.md"))
	require.NoError(t, err)
	lists := strings.Join(regexp.MustCompile(`(?s)\nExit codes?\b.*?\n\n`).FindAllString(string(page), -1), "")
	source, err := os.ReadFile(filepath.Join(root, "internal/tool/exit.go"))
	require.NoError(t, err)
	codes := regexp.MustCompile(`(?m)^\tExit\w+\s+= (\d+)`).FindAllStringSubmatch(string(source), -1)
	require.NotEmpty(t, codes)
	for _, code := range codes {
		require.Regexp(t, `\b`+code[1]+`\b`, lists, "an exit code")
	}
}
