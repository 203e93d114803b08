package main

import (
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRules checks that the page is what the code, the mutants and the texts of the rules
// generate, and that each label has exactly one row.
func TestRules(t *testing.T) {
	const root = "../../.."
	places, err := labels(root)
	require.NoError(t, err)
	want, err := page(root, places)
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(root, rulesPage))
	require.NoError(t, err)
	lines := strings.Split(string(got), "\n")
	for i, line := range strings.Split(want, "\n") { // line by line, because the page is long
		require.Less(t, i, len(lines), "the page is out of date: make docs")
		require.Equal(t, line, lines[i], "the page is out of date: make docs")
	}
	require.Len(t, got, len(want), "the page is out of date: make docs")
	for label := range places {
		require.Equal(t, 1, strings.Count(want, "`safety:"+label+"`"), label)
	}

	fewer := maps.Clone(places)
	delete(fewer, "late-answer")
	_, err = page(root, fewer)
	require.ErrorContains(t, err, "no line has the label late-answer")
}

// TestEnclosing checks the names of what encloses a line.
func TestEnclosing(t *testing.T) {
	const text = `package p
func f() {
	x := 1
}
func (t *T[K]) m() {}
func (t T) n() {
}
const (
	a = 1
	b = a +
		1
)
type T struct {
	y int
}

`
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", text, 0)
	require.NoError(t, err)
	for line, want := range map[int]string{1: "", 3: "f", 5: "T.m", 6: "T.n", 9: "a", 11: "b", 14: "T", 16: ""} {
		require.Equal(t, want, enclosing(fset, file, line), "line %d", line)
	}
}
