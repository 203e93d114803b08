package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMutantsFit holds the table to the tree: every mutant still applies, and the
// test named for it is there. Whether it is caught is for make mutants to say.
func TestMutantsFit(t *testing.T) {
	const root = "../../.."
	names := map[string]bool{}
	tests := map[string][]string{}
	for _, m := range mutants {
		require.Regexp(t, `^[a-z]+(-[a-z0-9]+)+$`, m.name)
		require.False(t, names[m.name], "two are named %s", m.name)
		names[m.name] = true
		require.NotEmpty(t, m.weak, m.name)
		require.NotEmpty(t, m.offends, m.name)
		_, err := m.apply(root)
		assert.NoError(t, err, m.name)
		dir, test := m.target()
		top, _, _ := strings.Cut(test, "/")
		if tests[dir] == nil {
			tests[dir] = testsIn(t, filepath.Join(root, dir))
		}
		require.Contains(t, tests[dir], top, "%s names a test that is not there", m.name)
	}
	require.GreaterOrEqual(t, len(mutants), 170, "some were lost")
}

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(\w \*testing\.[TF]\)`)

// testsIn returns the names of a package's tests.
func testsIn(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	var names []string
	for _, f := range files {
		src, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, m := range testFunc.FindAllStringSubmatch(string(src), -1) {
			names = append(names, m[1])
		}
	}
	return names
}
