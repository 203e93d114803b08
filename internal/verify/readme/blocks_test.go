//go:build unix

package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/text"

	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// notRun lists the lines of shell blocks that do not run here, each with the reason.
var notRun = []struct {
	page, line string
	instead    string // the line that runs in its place, if any
	reason     string
}{
	{page: "README.md", line: "git clone https://github.com/natslock/locks && cd locks", instead: "cd locks", reason: "needs the network"},
	{page: "README.md", line: "go test ./...                 # two minutes, against a real nats-server", reason: "runs this test too"},
	{page: "docs/guide/getting-started.md", line: "go install github.com/natslock/locks/cmd/lockctl@latest", reason: "needs the network"},
	{page: "docs/guide/getting-started.md", line: "go get github.com/natslock/locks", reason: "needs the network"},
	{page: "docs/guide/getting-started.md", line: "git clone https://github.com/natslock/locks && cd locks", instead: "cd locks", reason: "needs the network"},
	{page: "docs/operate/bucket.md", line: "lockctl doctor", instead: "until lockctl doctor; do sleep 0.1; done", reason: "warns at first: the script is too fast for the new replicas"},
	{page: "docs/operate/bucket.md", line: "nats stream add --config locks.json", reason: "needs the nats command"},
	{page: "docs/operate/incidents.md", line: "nats stream rm KV_natslock", reason: "needs the nats command"},
	{page: "docs/operate/monitoring.md", line: "git clone https://github.com/natslock/locks && cd locks", instead: "cd locks", reason: "needs the network"},
	{page: "docs/operate/lockctl.md", line: `lockctl break deploy --reason "host is gone"`, instead: `lockctl acquire deploy; lockctl break deploy --reason "host is gone"`, reason: "nobody holds the lock"},
	{page: "docs/operate/lockctl.md", line: "lockctl break -f deploy --id MAEFS64Q", reason: "the id is made up"},
	{page: "docs/operate/lockctl.md", line: "lockctl init --print --replicas 3 >locks.json && nats stream add --config locks.json", instead: "lockctl init --print --replicas 3 >locks.json", reason: "needs the nats command"},
	{page: "docs/operate/lockctl.md", line: "lockctl server &", reason: "needs port 4222; TestSessions runs it on a free port"},
	{page: "docs/operate/lockctl.md", line: "export NATS_URL=nats://127.0.0.1:4222", reason: "is the address of that server"},
	{page: "docs/operate/lockctl.md", line: "lockctl top 'orders.>'", reason: "draws on a whole screen; the tests of lockctl have one"},
	{page: "docs/protocol/conform.md", line: "go install github.com/natslock/locks/cmd/lockconform@latest", instead: "go -C locks install ./cmd/lockconform", reason: "needs the network"},
	{page: "docs/protocol/conform.md", line: "lockconform --level 1 -- node locker.js", reason: "needs a locker; TestJavaScript runs one"},
	{page: "docs/protocol/conform.md", line: "lockconform --only 2 -- node locker.js", reason: "needs a locker; TestConformPlain runs one"},
	{page: "docs/protocol/conform.md", line: "lockconform --part rwlock -- node locker.js", reason: "needs a locker; TestConformPlain runs one"},
	{page: "docs/operate/lockctl.md", line: "lockctl check --partitions ingest --unowned 0 --waits 1m", reason: "needs workers; TestCheckPartitions has some"},
	{page: "docs/operate/lockctl.md", line: "lockctl top --sort held", reason: "draws on a whole screen; the tests of lockctl have one"},
}

// onCluster lists the pages whose commands need three servers. Their bucket does not exist
// yet, whereas that of all other pages does.
var onCluster = []string{"docs/operate/bucket.md"}

// endless matches the commands that run until a signal ends them. The session runs them
// in the background, as a reader does in a second terminal.
var endless = regexp.MustCompile(`^(natslock-exporter |lockctl watch |lockctl elect |lockctl partitions .*--watch)`)

// programs are the reader's own programs, which the pages run under locks.
var programs = map[string]string{
	"deploy.sh": "", "backup.sh": "", "report.sh": "", "query.sh": "", "rebuild.sh": "", "export.sh": "",
	"query": "", "export": "", "make": "", "first-part": "", "second-part": "",
	"scheduler": "echo scheduling\nexec sleep 300\n",
}

// sessionLimit bounds the session of a page, including the compilation that its commands need.
const sessionLimit = 5 * time.Minute

// prelude is the beginning of each session. The shell prints each command, with its line in
// the page, before running it, and stops at the first command that fails.
const prelude = `
set -eEP -o pipefail

# begun waits until the command of a line, which runs in the background, has printed
# something.
begun() {
	local -; set +x
	until [ -s ~/"$1.out" ]; do kill -0 $!; sleep 0.02; done
	pids[$1]=$!
}

# page_ends ends these commands, and fails if one of them has failed before.
page_ends() {
	local -; set +x
	for line in "${!pids[@]}"; do
		kill "${pids[line]}" || :
		wait "${pids[line]}" || [ $? = 143 ] || { echo "+$PAGE:$line: has failed"; cat ~/"$line.out"; exit 1; }
	done
	echo "$PAGE: every line has run"
}

exec 9>&1
BASH_XTRACEFD=9 PS4='+${FUNCNAME:-$PAGE}:$LINENO: '
set -x
`

// TestShellBlocks runs the shell blocks of the README and the documents as a reader types
// them. Each page has its own shell, home directory and nats-server. The home directory
// contains the repository under locks, and lockctl is on the PATH.
//
// A console block shows output, so it belongs to the sessions in steps.go, which TestSessions
// runs and compares.
func TestShellBlocks(t *testing.T) {
	tier.Proof(t)
	if exec.Command("bash", "-c", "((BASH_VERSINFO >= 5))").Run() != nil {
		t.Skip("needs bash 5 or later")
	}
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	bin := t.TempDir()
	require.NoError(t, build(bin))

	env := environment(t)
	used := make([]bool, len(notRun))
	for _, page := range pages(t, root) {
		lines := script(t, root, page, used)
		if lines == "" {
			continue
		}
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			// The outer shell ends whatever the page has left in the background.
			cmd := exec.Command("bash", "-c", `bash page; code=$?; trap "" TERM; kill -TERM 0; exit $code`)
			cmd.Dir = home(t, root, lines)
			cmd.Env = append(slices.Clip(env), "HOME="+cmd.Dir, "PAGE="+page, "NATS_URL="+servers(t, page),
				"PATH="+strings.Join([]string{bin, cmd.Dir, cmd.Dir + "/go/bin", os.Getenv("PATH")}, ":"))
			shown, err := onTerminal(t, cmd)
			if err != nil || !strings.Contains(shown, page+": every line has run") {
				commands := regexp.MustCompile(`(?m)^\++(`+page+`:\d+): `).FindAllStringSubmatch(shown, -1)
				require.NotEmpty(t, commands, "%v\n%s", err, shown)
				t.Fatalf("%s fails: %v\n%s", commands[len(commands)-1][1], err, shown)
			}
		})
	}
	for i, n := range notRun {
		assert.True(t, used[i], "notRun has a line that %s does not have: %s", n.page, n.line)
		assert.NotEmpty(t, n.reason, "notRun has no reason: %s: %s", n.page, n.line)
	}
}

// pages returns the README and all documents, by their paths from the root. It visits the
// whole repository so that "go test" does not reuse a cached result of this test after lockctl
// has changed.
func pages(t *testing.T, root string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		switch name = filepath.ToSlash(name); {
		case err != nil:
			return err
		case name == ".git" && d.IsDir():
			return filepath.SkipDir
		case name == "README.md" || strings.HasPrefix(name, "docs/") && strings.HasSuffix(name, ".md"):
			names = append(names, name)
		}
		return nil
	})
	require.NoError(t, err)
	return names
}

// script returns a page as a shell program, or an empty string if the page has no shell block.
// Each line of a shell block stays in its place and all others are empty, so the line numbers
// of the program are those of the page.
func script(t *testing.T, root, page string, used []bool) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(root, page))
	require.NoError(t, err)
	lines := make([]string, bytes.Count(source, []byte("\n")))
	found := false
	err = ast.Walk(goldmark.DefaultParser().Parse(text.NewReader(source)), func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		block, ok := n.(*ast.FencedCodeBlock)
		if !ok || !entering || block.Lines().Len() == 0 {
			return ast.WalkContinue, nil
		}
		first := bytes.Count(source[:block.Lines().At(0).Start], []byte("\n"))
		switch string(block.Language(source)) {
		case "sh":
			found = true
			for i, segment := range block.Lines().Sliced(0, block.Lines().Len()) {
				line := strings.TrimRight(string(segment.Value(source)), "\n")
				lines[first+i] = command(t, page, first+i+1, line, used)
			}
		case "console":
			_, session, _, _ := split(string(source))
			require.Contains(t, session, string(block.Lines().Value(source)), "%s:%d: a console block is not in steps.go", page, first)
		case "bash", "shell", "zsh":
			t.Errorf("%s:%d: the language of a block for the shell is sh", page, first)
		}
		return ast.WalkContinue, nil
	})
	require.NoError(t, err)
	if !found {
		return ""
	}
	require.Empty(t, lines[0])
	lines[0] = ". ~/prelude"
	return strings.Join(lines, "\n") + "\npage_ends\n"
}

// command returns what the shell runs for a line of a page.
func command(t *testing.T, page string, number int, line string, used []bool) string {
	t.Helper()
	for i, n := range notRun {
		if n.page == page && n.line == line {
			used[i] = true
			t.Logf("%s:%d: not run, %s: %s", page, number, n.reason, line)
			return n.instead
		}
	}
	if _, err := exec.LookPath("jq"); err != nil && strings.Contains(line, "| jq ") {
		t.Logf("%s:%d: not run, there is no jq on the PATH: %s", page, number, line)
		return ""
	}
	if endless.MatchString(line) {
		return fmt.Sprintf("{ exec %s; } >~/%d.out 2>&1 & begun %d", line, number, number)
	}
	return line
}

// home creates the home directory of a session.
func home(t *testing.T, root, lines string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "blocks-")
	require.NoError(t, err)
	// t.TempDir would fail the test if the go command were still writing its telemetry there.
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Symlink(root, filepath.Join(dir, "locks")))
	files := map[string]string{"prelude": prelude, "page": lines}
	for name, body := range programs {
		files[name] = "#!/bin/sh\n" + body
	}
	for name, body := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(body), 0o700))
	}
	return dir
}

// environment returns the test's environment without its user's settings. The go command still
// finds the packages that it has compiled before.
func environment(t *testing.T) []string {
	t.Helper()
	own := regexp.MustCompile(`^(NATS|LOCKCTL|NATSLOCK|XDG)_|^(GOPATH|GOBIN|BASH_ENV)=`)
	env := slices.DeleteFunc(os.Environ(), own.MatchString)
	for _, cache := range []string{"GOCACHE", "GOMODCACHE"} {
		dir, err := exec.Command("go", "env", cache).Output()
		require.NoError(t, err)
		env = append(env, cache+"="+strings.TrimSpace(string(dir)))
	}
	return append(env, "SHELL=/bin/sh", "GOFLAGS=-buildvcs=false", "NATSLOCK_EXPORTER_LISTEN=127.0.0.1:0")
}

// servers starts the servers of a page and returns their addresses.
func servers(t *testing.T, page string) string {
	t.Helper()
	if slices.Contains(onCluster, page) {
		return testutil.RunCluster(t, 3).URLs()
	}
	s := testutil.RunServer(t)
	_, err := natslock.New(t.Context(), s.Connect())
	require.NoError(t, err)
	return s.URL()
}

// onTerminal runs a command and returns everything that it and its children print. Standard
// input is a terminal on which the reader has already typed "y" for each question.
func onTerminal(t *testing.T, cmd *exec.Cmd) (string, error) {
	t.Helper()
	reader, terminal, err := pty.Open()
	if err != nil {
		t.Skip("no terminals: ", err)
	}
	defer reader.Close()
	defer terminal.Close()
	_, err = reader.WriteString(strings.Repeat("y\n", 10))
	require.NoError(t, err)

	var shown bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, &shown, &shown
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	require.NoError(t, cmd.Start())
	limit := time.AfterFunc(sessionLimit, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer limit.Stop()
	err = cmd.Wait() // until every process has closed its output
	return shown.String(), err
}
