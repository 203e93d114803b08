package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMutantsFit checks the table against the tree: each mutant's label occurs exactly once, its
// operator applies there, and the tests named for it exist. Each label has a mutant, and each label
// in the core has a test next to it. Whether the tests catch the mutant is up to make mutants.
func TestMutantsFit(t *testing.T) {
	const root = "../../.."
	places, err := labels(root)
	require.NoError(t, err)
	names, used, core := map[string]bool{}, map[string]bool{}, map[string]bool{}
	tests := map[string][]string{}
	for _, m := range mutants {
		name := m.name()
		require.Regexp(t, `^[a-z0-9]+(-[a-z0-9]+)*$`, m.label)
		require.False(t, names[name], "two are named %s", name)
		names[name], used[m.label] = true, true
		require.NotEmpty(t, m.weak, name)
		_, _, err := m.apply(root, places)
		assert.NoError(t, err, name)
		for _, n := range m.tests(places) {
			top, _, _ := strings.Cut(n.test, "/")
			if tests[n.dir] == nil {
				tests[n.dir] = testsIn(t, filepath.Join(root, n.dir))
			}
			require.Contains(t, tests[n.dir], top, "%s names a test that is not there", name)
			core[m.label] = core[m.label] || n.dir == "internal/core"
		}
	}
	for label, at := range places {
		assert.True(t, used[label], "%s:%d: no mutant is about the label %s", at.file, at.line, label)
		if strings.HasPrefix(at.file, "internal/core/") { // the core's scripts need no server
			assert.True(t, core[label], "%s:%d: no mutant names a test beside the label %s", at.file, at.line, label)
		}
	}
	require.GreaterOrEqual(t, len(mutants), 140, "some were lost")
}

// TestJudges checks that a test next to the line decides on its own, unless all tests are wanted.
func TestJudges(t *testing.T) {
	places := map[string]place{"one": {file: "internal/core/x.go"}}
	outer := mutant{label: "one", test: "natslock.TestX/y"}
	both := outer
	both.beside = "TestZ"
	for _, all := range []bool{false} {
		require.Equal(t, []named{{"natslock", "TestX/y"}}, outer.judges(places, all))
	}
	require.Equal(t, []named{{"internal/core", "TestZ"}}, both.judges(places, false))
	require.Equal(t, []named{{"internal/core", "TestZ"}, {"natslock", "TestX/y"}}, both.judges(places, true))
	require.Len(t, both.tests(places), 2, "both have to pass without the mutant")
}

// TestLabels checks that a label that occurs twice, or does not end its line, is an error.
func TestLabels(t *testing.T) {
	for text, wrong := range map[string]string{
		"//safety:one-a":             "",
		"// why //safety:one":        "",
		"//safety:One":               "ends its line",
		"//safety:one and why":       "ends its line",
		"//safety:one\n//safety:one": "stands at",
	} {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "", "package p\n"+text+"\n", parser.ParseComments)
		require.NoError(t, err)
		err = labelsIn(map[string]place{}, "p.go", fset, file)
		if wrong == "" {
			assert.NoError(t, err, text)
		} else {
			assert.ErrorContains(t, err, wrong, text)
		}
	}
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
