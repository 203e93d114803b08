// Package house holds the rules of the house: who may import whom, and that
// every package says what it is for. It has no code of its own.
package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/natslock/locks"

// allowed is what each package may import of this module: arrows point down.
var allowed = map[string][]string{
	"kvstore":             {},
	"internal/lease":      {"kvstore"},
	"natslock":            {"internal/lease", "kvstore"},
	"rwlock":              {"natslock", "internal/lease", "kvstore"},
	"testutil":            {"kvstore"},
	"internal/house":      {},
	"internal/model":      {},
	"internal/mutants":    {},
	"internal/topologies": {},
	"internal/security":   {},
	"internal/proof":      {"natslock", "rwlock", "kvstore", "testutil"}, // tests alone import it
	"cmd/":                {"natslock", "rwlock", "kvstore"},
	"examples/":           {"natslock", "rwlock", "kvstore"},
	"internal/speed":      {"kvstore", "testutil"}, // like internal/proof
	"internal/tiers":      {},
	"internal/versions":   {},
	"internal/readme":     {},
	"internal/verify/":    {},
}

// needServer are the packages that may start a server.
var needServer = []string{"testutil", "internal/proof", "internal/speed", "cmd/lockctl"}

// forTests are the packages that tests are made of.
var forTests = []string{"testutil", "internal/proof", "internal/speed"}

type pkg struct {
	ImportPath string
	Doc        string
	Imports    []string
	Deps       []string
	GoFiles    []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Doc,Imports,Deps,GoFiles", module+"/...").Output()
	require.NoError(t, err)
	var all []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			require.NotEmpty(t, all)
			return all
		}
		require.NoError(t, err)
		all = append(all, p)
	}
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		may, found := allowed[name]
		for prefix, list := range allowed {
			if strings.HasSuffix(prefix, "/") && strings.HasPrefix(name, prefix) {
				may, found = list, true
			}
		}
		require.True(t, found, "%s has no place in the house yet", name)
		for _, i := range p.Imports {
			if own, ok := strings.CutPrefix(i, module+"/"); ok {
				require.Contains(t, may, own, "%s must not import %s", name, own)
			}
			if name == "internal/lease" {
				require.NotContains(t, i, "nats-io", "the machinery knows the store's contract, not NATS")
			}
			if !slices.Contains(forTests, name) {
				require.NotEqual(t, "testing", i, "%s imports testing", name)
			}
		}
		if !slices.Contains(needServer, name) {
			for _, d := range p.Deps {
				require.NotContains(t, d, "nats-server", "%s depends on the server", name)
			}
		}
	}
}

func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) > 0 {
			require.NotEmpty(t, p.Doc, "%s has no package comment", p.ImportPath)
		}
	}
}
