package layout

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// given lists the declarations that a reader of the guide has before pasting a snippet. The first entry applies to
// every page, and docs/guide/README.md names its variables. Each of the others applies to one page, which names its
// variables in backticks.
var given = map[string]string{
	"docs/guide/README.md": "ctx context.Context, nc *nats.Conn, js jetstream.JetStream, locks *natslock.Client, l *natslock.Lock, err error",

	"docs/guide/getting-started.md": "server string, makeReport func(context.Context, uint64) error",
	"docs/guide/elections.md":       "e *election.Election, schedule func(context.Context, uint64) error, items chan string, process func(context.Context, string) error, show func(string), lead func(context.Context, *election.Term) error",
	"docs/guide/partitions.md":      "p *partition.Partition, messages func(int) chan string, process func(context.Context, uint64, string) error",
	"docs/guide/shutdown.md":        "server string, web *http.Server, job jetstream.Msg, work func(context.Context, string) error, mux *http.ServeMux, pay func(context.Context, string, uint64) error",
	"docs/guide/fencing.md":         "name string",
	"docs/guide/periodic.md":        "zone *time.Location, report func(context.Context, *natslock.Lock) error, day string, accounts []string",
	"docs/guide/testing.md":         "locks *locktest.Locker, t *testing.T",
}

// importable lists the packages that a snippet may use, by their name in the snippet.
var importable = map[string]string{
	"natslock": module + "/natslock", "rwlock": module + "/rwlock", "semaphore": module + "/semaphore", "election": module + "/election", "partition": module + "/partition",
	"fence": module + "/fence", "locktest": module + "/locktest", "testutil": module + "/testutil", "nats": "github.com/nats-io/nats.go",
	"jetstream": "github.com/nats-io/nats.go/jetstream", "require": "github.com/stretchr/testify/require", "http": "net/http",
	"signal": "os/signal", "context": "context", "errors": "errors", "fmt": "fmt", "log": "log", "os": "os", "sync": "sync", "syscall": "syscall", "testing": "testing", "time": "time",
}

// TestSnippetsCompile compiles each Go block of the guide as it stands, in a function that has what the page says is
// given and that may return an error. A block of declarations becomes part of its page's package.
func TestSnippetsCompile(t *testing.T) {
	abs, err := filepath.Abs(root)
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```go\n(.*?)```")
	overlay := map[string]string{}
	dir, snippets := t.TempDir(), 0
	texts := documents(t)
	for _, page := range slices.Sorted(maps.Keys(texts)) {
		if !strings.HasPrefix(page, "docs/guide/") {
			continue
		}
		text := texts[page]
		params := parameters(t, page, texts)
		var body strings.Builder
		for _, at := range block.FindAllStringSubmatchIndex(text, -1) {
			code, line := text[at[2]:at[3]], 1+strings.Count(text[:at[2]], "\n")
			snippets++
			if regexp.MustCompile(`(?m)^(func|type|var|import) `).MatchString(code) {
				fmt.Fprintf(&body, "//line %s:%d\n%s\n", page, line, code)
				continue
			}
			fmt.Fprintf(&body, "func _(%s) error {\n{\n//line %s:%d\n%s}\nreturn nil\n}\n", params, page, line, code)
		}
		if body.Len() == 0 {
			continue
		}
		name := strings.TrimSuffix(filepath.Base(page), ".md")
		file := filepath.Join(dir, name+".go")
		require.NoError(t, os.WriteFile(file, []byte("package page\n"+imports(body.String())+body.String()), 0o600))
		overlay[filepath.Join(abs, "internal/verify/layout/snippets", name, "page.go")] = file
	}
	require.Positive(t, snippets)

	replace, err := json.Marshal(map[string]any{"Replace": overlay})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), replace, 0o600))
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-gcflags=-e")
	for file := range overlay {
		name, _ := filepath.Rel(abs, filepath.Dir(file))
		build.Args = append(build.Args, "./"+filepath.ToSlash(name))
	}
	build.Dir = abs
	out, err := build.CombinedOutput()
	said := 0
	for line := range strings.Lines(string(out)) {
		said++
		// The reader goes on to use the variables that a snippet declares.
		if strings.HasPrefix(line, "# ") || strings.Contains(line, "declared and not used") {
			continue
		}
		assert.Fail(t, "a snippet does not compile as it stands", "%s", line)
	}
	require.True(t, err == nil || said > 0, "%v", err)
}

// parameters returns what a page gives to its snippets. The page must name each parameter.
func parameters(t *testing.T, page string, texts map[string]string) string {
	t.Helper()
	own := map[string]bool{}
	var all []string
	for _, from := range slices.Compact([]string{page, "docs/guide/README.md"}) {
		if given[from] == "" {
			continue
		}
		for _, p := range regexp.MustCompile(`(\w+) (func\(.*\) \w+|[^,]+)`).FindAllStringSubmatch(given[from], -1) {
			assert.True(t, strings.Contains(texts[from], "`"+p[1]+"`"), "%s does not say what %s is", from, p[1])
			if !own[p[1]] {
				own[p[1]] = true
				all = append(all, p[0])
			}
		}
	}
	return strings.Join(all, ", ")
}

// imports returns the import declarations for the packages that code names.
func imports(code string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(importable)) {
		if regexp.MustCompile(`\b` + name + `\.[A-Z]`).MatchString(code) {
			fmt.Fprintf(&b, "import %s %q\n", name, importable[name])
		}
	}
	return b.String()
}

// A script in the documents that is interrupted or terminated must release its lock, even in a shell that does not run
// the EXIT trap on a signal.
func TestScriptsReleaseAtSignals(t *testing.T) {
	traps := regexp.MustCompile("(?m)^ *(?:.*&& )?(trap 'lockctl release .*(?:\n *trap .*)*)$")
	scripts := 0
	for page, text := range documents(t) {
		for _, m := range traps.FindAllStringSubmatch(text, -1) {
			scripts++
			for signal, code := range map[string]int{"INT": 130, "TERM": 143} {
				sh := exec.Command("sh", "-c", "lockctl() { echo released; }; H=x\n"+m[1]+"\nkill -"+signal+" $$; exit 1")
				out, err := sh.CombinedOutput()
				assert.Equal(t, "released\n", string(out), "%s, %s: %v", page, signal, err)
				assert.Equal(t, code, sh.ProcessState.ExitCode(), "%s, %s", page, signal)
			}
		}
	}
	require.Positive(t, scripts)
}
