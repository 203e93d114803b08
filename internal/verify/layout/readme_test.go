package layout

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../../.."

// documents returns the pages that people read, by their path from the root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == "node_modules" { // the dependencies of examples/javascript
			return filepath.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, ".md") {
			return err
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(root, path)
		texts[filepath.ToSlash(name)] = string(text)
		return err
	})
	require.NoError(t, err)
	require.Contains(t, texts, "README.md")
	return texts
}

// TestReadmeIsCode checks that every Go block in the documents is part of a compiled
// file, either an example or a test.
func TestReadmeIsCode(t *testing.T) {
	block := regexp.MustCompile("(?s)```go\n(.*?)```")
	var blocks [][]string
	for _, text := range documents(t) {
		blocks = append(blocks, block.FindAllStringSubmatch(text, -1)...)
	}
	require.NotEmpty(t, blocks)

	var code strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		code.WriteString(unindented(string(text)))
		return err
	})
	require.NoError(t, err)
	for _, b := range blocks {
		require.True(t, strings.Contains(code.String(), unindented(b[1])), "no compiled code has this block of a document:\n%s", b[1])
	}
}

// unindented returns text without the indentation of its lines.
func unindented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimLeft(line, "\t"))
	}
	return b.String()
}

// TestNamedTestsExist checks that each test that a document names exists.
func TestNamedTestsExist(t *testing.T) {
	var tests strings.Builder
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		tests.Write(text)
		return err
	})
	require.NoError(t, err)
	named := 0
	for document, text := range documents(t) {
		// A name after a dot is a function of another package.
		for _, match := range regexp.MustCompile(`(?:^|[^.\w])(Test[A-Z]\w+)`).FindAllStringSubmatch(text, -1) {
			name := match[1]
			named++
			require.True(t, strings.Contains(tests.String(), "func "+name+"(t *testing.T)"), "%s names %s", document, name)
		}
	}
	require.Positive(t, named)
}
