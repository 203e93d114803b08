// Package layout enforces the rules about the layout of the repository. They restrict the
// imports of each package and require package comments, examples, and documents whose
// links resolve and whose code compiles. It has no code outside its tests.
package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/natslock/locks"

// floors lists the packages that users run, lowest floor first. A package imports only
// packages on lower floors, so that dependencies run one way. Patterns are those of
// [path.Match].
var floors = [][]string{
	{"internal/worker", "internal/plain"},
	{"internal/kvstore"},
	{"internal/clock"},
	{"internal/record"},
	{"internal/core"},
	{"internal/bucket"},
	{"internal/keeper"},
	{"internal/session", "internal/claim"},
	{"internal/admin"},
	{"internal/call"},
	{"internal/cohort"},
	{"internal/bridge"},
	{"kvstore"},
	{"natslock"},
	{"natslock/admin", "internal/again"},
	{"rwlock", "semaphore", "election", "partition", "fence", "testutil", "locktest"},
	{"internal/tool", "internal/script", "internal/mirror"},
	{"cmd/lockctl/internal/console"},
	{"cmd/lockctl/internal/show"},
	{"cmd/lockctl/internal/session"},
	{"cmd/lockctl/internal/demo", "cmd/lockctl/internal/doctor", "cmd/lockctl/internal/supervise", "cmd/lockctl/internal/top"},
	{"cmd/*", "examples/*"},
}

// only further restricts what a package imports from the floors below it.
var only = map[string][]string{
	"internal/admin":  {"internal/session", "internal/keeper", "internal/bucket", "internal/core", "internal/record", "internal/clock", "internal/worker", "internal/kvstore", "internal/plain"},
	"internal/call":   {"internal/claim", "internal/session", "internal/keeper", "internal/bucket", "internal/core", "internal/record", "internal/clock", "internal/kvstore", "internal/plain"},
	"internal/cohort": {"internal/call", "internal/claim", "internal/session", "internal/bucket", "internal/core", "internal/record", "internal/clock", "internal/worker", "internal/kvstore", "internal/plain"},
	"kvstore":         {"internal/kvstore"},
	"natslock/admin":  {"natslock", "internal/bridge", "internal/admin", "internal/session", "internal/record", "internal/kvstore"},
	"rwlock":          {"natslock", "internal/kvstore", "internal/bridge", "internal/record"},
	"semaphore":       {"natslock", "internal/bridge", "internal/record"},
	"internal/again":  {"natslock", "internal/bridge", "internal/kvstore"},
	"election":        {"natslock", "natslock/admin", "internal/again", "internal/bridge", "internal/clock", "internal/plain"},
	"partition":       {"natslock", "natslock/admin", "internal/again", "internal/clock", "internal/plain"},
	"fence":           {"internal/kvstore", "internal/clock", "internal/plain"},
	"testutil":        {},
	"locktest":        {"natslock", "natslock/admin", "internal/kvstore", "internal/record", "internal/bridge", "internal/plain"},
	"internal/tool":   {"natslock", "internal/kvstore", "internal/plain"},
	"internal/mirror": {"natslock", "natslock/admin", "internal/bridge", "internal/admin", "internal/record", "internal/kvstore"},
	"internal/script": {"natslock", "natslock/admin", "internal/bridge", "internal/admin", "internal/record", "internal/clock"},
	"cmd/*":           {"natslock", "natslock/admin", "rwlock", "semaphore", "election", "partition", "internal/kvstore", "internal/plain", "internal/tool", "internal/script", "internal/mirror", "cmd/lockctl/internal/*"},

	"cmd/lockctl/internal/console":   {"internal/tool"},
	"cmd/lockctl/internal/show":      {"natslock", "natslock/admin", "partition", "internal/kvstore", "internal/plain", "internal/tool", "internal/mirror", "cmd/lockctl/internal/console"},
	"cmd/lockctl/internal/demo":      {"natslock", "natslock/admin", "internal/plain", "internal/tool", "cmd/lockctl/internal/*"},
	"cmd/lockctl/internal/doctor":    {"natslock", "natslock/admin", "rwlock", "internal/kvstore", "internal/tool", "cmd/lockctl/internal/*"},
	"cmd/lockctl/internal/top":       {"natslock", "natslock/admin", "internal/kvstore", "internal/plain", "internal/tool", "internal/mirror", "cmd/lockctl/internal/*"},
	"cmd/lockctl/internal/supervise": {"internal/tool", "cmd/lockctl/internal/*"},
	"cmd/lockctl/internal/session":   {"natslock", "natslock/admin", "internal/kvstore", "internal/plain", "internal/tool", "internal/mirror", "cmd/lockctl/internal/console", "cmd/lockctl/internal/show"},
	"examples/*":                     {"natslock", "natslock/admin", "rwlock", "semaphore", "election", "partition", "fence", "kvstore"},
}

// verify contains everything that only tests need, and forTests lists what each package
// there imports outside its own tests. A package without an entry imports nothing from
// this module; the model in particular must be independent of the code. Packages of
// behaviors contain nothing but tests.
const (
	verify    = "internal/verify/"
	behaviors = "tests/"
)

var forTests = map[string][]string{
	verify + "example": {"natslock"},
	verify + "locker":  {"natslock", "rwlock", "semaphore"},
	verify + "proxy":   {"testutil"},
	verify + "machine": {verify + "tier"},
	verify + "faults":  {"natslock", "internal/plain", "internal/kvstore", "internal/bridge"},
	verify + "kit":     {"natslock", "natslock/admin", "rwlock", "testutil", "internal/kvstore", verify + "faults", verify + "tier", "internal/bridge", "internal/record"},
	verify + "mutants": {verify + "tier"},
	verify + "history": {"natslock", "natslock/admin", "rwlock", "semaphore", "internal/kvstore", verify + "kit", "internal/record"},
}

// onlyTests lists the packages that exist for tests, including those of users.
var onlyTests = []string{"testutil", "locktest"}

// needServer lists the packages that may start a server.
var needServer = []string{"testutil", verify + "example", verify + "history", verify + "kit", verify + "proxy", "cmd/lockconform", "cmd/lockctl", "cmd/lockctl/internal/session", "cmd/lockctl/internal/demo", "cmd/lockctl/internal/doctor", "cmd/lockctl/internal/supervise", "cmd/lockctl/internal/top"}

// knowsNATS lists the packages that talk to the server. All others know only kvstore.KV.
var knowsNATS = []string{"internal/kvstore", "kvstore", "natslock", "natslock/admin", "fence", "testutil", "internal/tool", "cmd/*", "cmd/lockctl/internal/session", "cmd/lockctl/internal/doctor", "cmd/lockctl/internal/supervise", "examples/*", verify + "*"}

type pkg struct {
	ImportPath string
	Doc        string
	Imports    []string
	Deps       []string
	GoFiles    []string
}

func (p pkg) name() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

func packages(t *testing.T) []pkg {
	t.Helper()
	list := exec.Command("go", "list", "-json=ImportPath,Doc,Imports,Deps,GoFiles", "./...") // excludes nested modules
	list.Dir = root
	out, err := list.Output()
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

// in reports whether any of the patterns matches the package.
func in(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(p, name)
		return err == nil && ok
	})
}

// floorOf returns the floor of a package, or -1 if it has none.
func floorOf(name string) int {
	return slices.IndexFunc(floors, func(f []string) bool { return in(f, name) })
}

// judge returns why a package must not import another package of this module, or nil if
// it may.
func judge(name, imported string) error {
	if strings.HasPrefix(name, verify) || strings.HasPrefix(name, behaviors) {
		if !in(forTests[name], imported) {
			return fmt.Errorf("%s imports %s, and its entry in forTests does not have it", name, imported)
		}
		return nil
	}
	floor, below := floorOf(name), floorOf(imported)
	switch {
	case name == "locktest" && imported == verify+"faults":
		return nil // the only injector, which users' tests need too
	case strings.HasPrefix(imported, verify):
		return fmt.Errorf("%s imports %s, which only tests may", name, imported)
	case floor < 0:
		return fmt.Errorf("%s has no floor yet", name)
	case in(onlyTests, imported):
		return fmt.Errorf("%s imports %s, which only tests may", name, imported)
	case below < 0 || below >= floor:
		return fmt.Errorf("%s imports %s, which is not on a lower floor", name, imported)
	}
	for pattern, list := range only {
		if in([]string{pattern}, name) && !in(list, imported) {
			return fmt.Errorf("%s imports %s, and may import %v only", name, imported, list)
		}
	}
	return nil
}

func TestImports(t *testing.T) {
	for _, p := range packages(t) {
		name := p.name()
		if !strings.HasPrefix(name, verify) && !strings.HasPrefix(name, behaviors) {
			assert.GreaterOrEqual(t, floorOf(name), 0, "%s has no floor yet", name)
		}
		for _, i := range p.Imports {
			if own, ok := strings.CutPrefix(i, module+"/"); ok {
				assert.NoError(t, judge(name, own))
			}
			if !in(knowsNATS, name) {
				assert.NotContains(t, i, "nats-io", "%s knows the store's contract, not NATS", name)
			}
			if !in(onlyTests, name) && !strings.HasPrefix(name, verify) {
				assert.NotEqual(t, "testing", i, "%s imports testing", name)
			}
		}
		if !in(needServer, name) {
			for _, d := range p.Deps {
				require.NotContains(t, d, "nats-server", "%s depends on the server", name)
			}
		}
	}
}

// TestJudge shows that the rule refuses forbidden imports.
func TestJudge(t *testing.T) {
	for _, arrow := range [][2]string{
		{"internal/session", "internal/cohort"}, {"internal/keeper", "internal/session"}, {"internal/claim", "internal/session"}, {"internal/session", "internal/claim"}, {"internal/admin", "internal/cohort"}, {"internal/claim", "internal/admin"}, {"internal/call", "internal/cohort"}, {"internal/claim", "internal/call"}, {"internal/call", "internal/admin"},
		{"internal/bucket", "internal/session"}, {"internal/record", "internal/bucket"}, {"internal/clock", "internal/record"},
		{"internal/kvstore", "internal/clock"}, {"internal/bridge", "natslock"}, {"rwlock", "internal/session"}, {"natslock", "rwlock"},
		{"election", "rwlock"}, {"fence", "natslock"},
		{"natslock", "testutil"}, {"natslock", "locktest"}, {"locktest", "testutil"}, {"locktest", "internal/session"}, {"locktest", verify + "history"}, {"cmd/lockctl", "internal/bridge"}, {"cmd/lockctl", "testutil"}, {"examples/new", "internal/record"},
		{"natslock", "internal/tool"}, {"election", "internal/tool"}, {"examples/new", "internal/tool"}, {"internal/tool", "election"}, {"internal/tool", "internal/session"},
		{"cmd/lockctl/internal/console", "natslock"}, {"cmd/lockctl/internal/console", "cmd/lockctl/internal/show"}, {"cmd/lockctl/internal/show", "cmd/lockctl/internal/session"}, {"cmd/lockctl/internal/session", "cmd/lockctl/internal/top"}, {"cmd/lockctl/internal/top", "cmd/lockctl/internal/doctor"}, {"internal/tool", "cmd/lockctl/internal/console"},
		{"natslock", "internal/verify/history"}, {"testutil", "internal/verify/ratios"}, {"internal/verify/model", "internal/kvstore"}, {"tests/queue", "natslock"},
		{"internal/new", "internal/kvstore"}, {"internal/session", "kvstore"}, {"kvstore", "internal/bucket"},
	} {
		require.Error(t, judge(arrow[0], arrow[1]), "%s -> %s", arrow[0], arrow[1])
	}
	for _, arrow := range [][2]string{
		{"internal/cohort", "internal/call"}, {"internal/call", "internal/claim"}, {"internal/claim", "internal/keeper"}, {"internal/session", "internal/keeper"}, {"internal/admin", "internal/session"}, {"internal/record", "internal/kvstore"},
		{"natslock", "internal/cohort"}, {"natslock", "internal/bridge"}, {"rwlock", "internal/bridge"}, {"cmd/lockctl", "rwlock"},
		{"cmd/lockctl", "internal/tool"}, {"internal/tool", "natslock"},
		{"election", "internal/bridge"}, {"election", "natslock"}, {"fence", "internal/clock"},
	} {
		require.NoError(t, judge(arrow[0], arrow[1]))
	}
}

func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) > 0 {
			require.NotEmpty(t, p.Doc, "%s has no package comment", p.ImportPath)
		}
	}
}
