package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTroubleshooting finds each exported error and each exit code of lockctl in the
// tables of the guide, and finds nothing in them that the code does not have.
func TestTroubleshooting(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "docs/guide/troubleshooting.md"))
	require.NoError(t, err)
	var wanted []string
	for _, dir := range []string{"natslock", "rwlock", "semaphore", "election", "partition", "fence", "kvstore", "locktest", "testutil"} {
		for _, name := range declared(t, dir, func(name string) bool { return strings.HasPrefix(name, "Err") }) {
			wanted = append(wanted, dir+"."+name)
		}
	}
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+\\.Err\\w+)` \\|").FindAllStringSubmatch(string(page), -1) {
		listed = append(listed, row[1])
	}
	require.NotEmpty(t, wanted)
	require.ElementsMatch(t, wanted, listed)

	source, err := os.ReadFile(filepath.Join(root, "internal/tool/exit.go"))
	require.NoError(t, err)
	codes := regexp.MustCompile(`(?m)^\tExit\w+\s+= (\d+)`).FindAllStringSubmatch(string(source), -1)
	require.NotEmpty(t, codes)
	for _, code := range codes {
		require.Regexp(t, `(?m)^\| (\d+, )?`+code[1]+`( \+ N)?(, \d+)? \|`, string(page), "an exit code")
	}
}

// declared returns the exported variables of a package that pass a filter.
func declared(t *testing.T, dir string, keep func(name string) bool) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, s := range g.Specs {
				for _, n := range s.(*ast.ValueSpec).Names {
					if keep(n.Name) {
						names = append(names, n.Name)
					}
				}
			}
		}
	}
	slices.Sort(names)
	return names
}
