package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestNamedTestsExist finds every test that a document names: what is said to be
// shown has to be shown by something.
func TestNamedTestsExist(t *testing.T) {
	const root = "../.."
	have, named := map[string]bool{}, map[string]string{}
	definition, mention := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z]\w*)\(`), regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !strings.HasSuffix(path, ".md") && !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, ".md") {
			for _, m := range mention.FindAllString(string(text), -1) {
				named[m] = path
			}
			return nil
		}
		for _, m := range definition.FindAllSubmatch(text, -1) {
			have[string(m[1])] = true
		}
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, named)
	for name, path := range named {
		assert.True(t, have[name], "%s names %s, which does not exist", path, name)
	}
}
