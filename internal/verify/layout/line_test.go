package layout

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Errors must fit on one line in logs. The text of errors.Join spans several lines, whereas that of
// plain.Join takes one.
func TestErrorsAreOneLine(t *testing.T) {
	files := 0
	for _, dir := range []string{"adapters", "cmd", "election", "fence", "internal", "kvstore", "locktest", "natslock", "partition", "rwlock", "semaphore"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case path == filepath.Join(root, "internal/verify"), path == filepath.Join(root, "internal/plain"):
				return fs.SkipDir
			case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			files++
			text, err := os.ReadFile(path)
			require.False(t, strings.Contains(string(text), "errors.Join("), "%s: use plain.Join", path)
			return err
		}))
	}
	require.Greater(t, files, 100)
}
