package page

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestScript runs the tests of those script functions that need no document, in Node.
func TestScript(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node in PATH: ", err)
	}
	dir := t.TempDir()
	for from, to := range map[string]string{"web/lib.js": "lib.mjs", "testdata/lib_test.mjs": "lib_test.mjs"} {
		text, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, to), text, 0o600))
	}
	run := exec.Command(node, filepath.Join(dir, "lib_test.mjs"))
	run.Env = append(os.Environ(), "TZ=UTC")
	out, err := run.CombinedOutput()
	require.NoError(t, err, string(out))
}
