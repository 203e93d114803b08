package layout

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// go vet must find a copied lock, because the copy is not what the caller unlocks.
func TestVetFindsACopiedLock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "copied.go")
	require.NoError(t, os.WriteFile(file, []byte(`package copied

import "`+module+`/natslock"

type job struct{ lock natslock.Lock }

func keep(l *natslock.Lock) job { return job{*l} }
`), 0o600))
	vet := exec.Command("go", "vet", "-copylocks", file)
	vet.Dir = root
	out, err := vet.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "copies lock value")
}
