package versions_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
)

const (
	// old ignores the conditions of writes whose headers come in a different order.
	old = "v2.11.4"
	// oldest belongs to the first supported release line.
	oldest = "v2.12.1"
)

var binaries string // directory of the built servers

func TestMain(m *testing.M) {
	var err error
	if binaries, err = os.MkdirTemp("", "natslock-versions-"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(binaries)
	os.Exit(code)
}

// built is a server that several tests share.
type built struct {
	once sync.Once
	path string
	skip string // why the server cannot be built here
	err  error
}

var servers = map[string]*built{old: {}, oldest: {}}

// binary builds a released server, or skips the test if its module cannot be downloaded. Thanks to
// Go's build cache, later builds take about a second.
func binary(t *testing.T, version string) string {
	t.Helper()
	b := servers[version]
	b.once.Do(func() {
		var module struct{ Dir, Error string }
		out, err := goTool("", "mod", "download", "-json", "github.com/nats-io/nats-server/v2@"+version)
		if _ = json.Unmarshal(out, &module); err != nil {
			b.skip = fmt.Sprintf("nats-server %s cannot be downloaded: %s %v", version, module.Error, err)
			return
		}
		if _, err := goTool(module.Dir, "mod", "download"); err != nil {
			b.skip = fmt.Sprintf("the modules of nats-server %s cannot be downloaded: %v", version, err)
			return
		}
		b.path = filepath.Join(binaries, "nats-server-"+version)
		_, b.err = goTool(module.Dir, "build", "-mod=readonly", "-o", b.path, ".")
	})
	if b.skip != "" {
		t.Skip(b.skip)
	}
	require.NoError(t, b.err)
	return b.path
}

// goTool runs the go command in dir.
func goTool(dir string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("go %v: %w: %s", args, err, errs.Bytes())
	}
	return out.Bytes(), err
}

// run starts a released server with a configuration, its JetStream in domain unless that is empty,
// and returns its address.
func run(t *testing.T, version, config, domain string) (url string) {
	t.Helper()
	path, dir := binary(t, version), t.TempDir()
	file := filepath.Join(dir, "server.conf")
	text := fmt.Sprintf("listen: \"127.0.0.1:-1\"\nports_file_dir: %q\njetstream { store_dir: %q, domain: %q }\n%s", dir, dir, domain, config)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	var log bytes.Buffer
	cmd := exec.Command(path, "-c", file)
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the log of nats-server %s:\n%s", version, &log)
		}
	})
	var ports struct {
		Nats []string `json:"nats"`
	}
	kit.Eventually(t, "the server says where it listens", func() bool {
		found, _ := filepath.Glob(filepath.Join(dir, "*.ports"))
		if len(found) != 1 {
			return false
		}
		data, err := os.ReadFile(found[0])
		return err == nil && json.Unmarshal(data, &ports) == nil && len(ports.Nats) > 0
	})
	return ports.Nats[0]
}

func connect(t *testing.T, url string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, opts...)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}
