package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadmeIsCode finds every Go block of the README in a file that is compiled:
// an example or a test.
func TestReadmeIsCode(t *testing.T) {
	const root = "../.."
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(readme, -1)
	require.NotEmpty(t, blocks)

	var code strings.Builder
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		text, err := os.ReadFile(path)
		code.WriteString(unindented(string(text)))
		return err
	})
	require.NoError(t, err)
	for _, b := range blocks {
		require.True(t, strings.Contains(code.String(), unindented(string(b[1]))), "no compiled code has this block of the README:\n%s", b[1])
	}
}

// unindented is text with the indentation of its lines taken away.
func unindented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimLeft(line, "\t"))
	}
	return b.String()
}
