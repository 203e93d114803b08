package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// patience limits how long a server may take to start or stop, and how long a step may
// overrun.
const patience = 30 * time.Second

// Servers are the servers of one class, each in its own process.
type Servers struct {
	Class   Class
	addrs   map[string][]string // host:port, by kind
	missing map[string]string   // why a kind cannot be started, by kind
	failed  map[string]error    // why a kind failed to start, by kind
	procs   map[string][]*child
}

// child is a server process. It exits when its standard input is closed, so that even a killed
// bench leaves no child behind.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ready chan error
	pid   int32 // the server's own process ID, set once the server is ready
}

// startServers starts the servers that are installed, with their data under dir. If a kind
// fails to start, it records the error and starts the other kinds anyway.
func startServers(ctx context.Context, class Class, dir, redisServer string) *Servers {
	s := &Servers{
		Class: class, addrs: map[string][]string{}, missing: map[string]string{}, failed: map[string]error{}, procs: map[string][]*child{},
	}
	kinds := []string{"nats"}
	if _, err := exec.LookPath(redisServer); err != nil {
		s.missing["redis"] = redisServer + " is not installed"
	} else {
		kinds = append(kinds, "redis")
	}
	if !class.Memory {
		kinds = append(kinds, "etcd")
	}
	for _, kind := range kinds {
		s.failed[kind] = s.start(kind, filepath.Join(dir, class.Name), redisServer)
	}
	for _, kind := range kinds {
		for _, p := range s.procs[kind] {
			if s.failed[kind] == nil {
				s.failed[kind] = p.wait(ctx)
			}
		}
	}
	if s.failed["nats"] == nil {
		s.failed["nats"] = s.placeable(ctx)
	}
	return s
}

// start starts the processes of a kind.
func (s *Servers) start(kind, dir, redisServer string) error {
	ports, err := freePorts(2 * s.Class.Replicas)
	if err != nil {
		return err
	}
	clients, peers := ports[:s.Class.Replicas], ports[s.Class.Replicas:]
	for i, port := range clients {
		p, err := startChild(childConfig{
			Kind: kind, Number: i, Dir: filepath.Join(dir, kind+strconv.Itoa(i)),
			Port: port, Peers: peers, Memory: s.Class.Memory, Sync: s.Class.Sync, Redis: redisServer,
		})
		if err != nil {
			return err
		}
		s.procs[kind] = append(s.procs[kind], p)
		s.addrs[kind] = append(s.addrs[kind], net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	return nil
}

// wait waits until the process is ready.
func (p *child) wait(ctx context.Context) error {
	select {
	case err := <-p.ready:
		return err
	case <-time.After(patience):
		return fmt.Errorf("the server was not ready within %v", patience)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// placeable waits until the cluster can place streams.
func (s *Servers) placeable(ctx context.Context) error {
	nc, js, err := connectJetStream(s)
	if err != nil {
		return err
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		try, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := js.CreateStream(try, jetstream.StreamConfig{Name: "probe", Subjects: []string{"probe"}, Replicas: s.Class.Replicas})
		cancel()
		if err == nil || errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return js.DeleteStream(ctx, "probe")
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the NATS servers cannot place a stream: %w", err)
		}
	}
}

// Stop stops all servers.
func (s *Servers) Stop() {
	for _, procs := range s.procs {
		for _, p := range procs {
			_ = p.stdin.Close()
		}
	}
	for _, procs := range s.procs {
		for _, p := range procs {
			limit := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
			_ = p.cmd.Wait()
			limit.Stop()
		}
	}
}

// startChild runs this program again as a server.
func startChild(c childConfig) (*child, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, err
	}
	config, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"="+string(config))
	logName := filepath.Join(c.Dir, "log")
	log, err := os.Create(logName)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stderr = log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &child{cmd: cmd, stdin: stdin, ready: make(chan error, 1)}
	go func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if pid, ok := strings.CutPrefix(lines.Text(), childReady); ok {
				n, err := strconv.ParseInt(pid, 10, 32)
				p.pid = int32(n)
				p.ready <- err
				return
			}
		}
		said, _ := os.ReadFile(logName)
		p.ready <- fmt.Errorf("the server ended: %s", tail(said, 300))
	}()
	return p, nil
}

// tail returns the last n bytes of text as a single line.
func tail(text []byte, n int) string {
	return strings.Join(strings.Fields(string(text[max(0, len(text)-n):])), " ")
}

// freePorts returns n different ports that no program is listening on.
func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // stays open until all ports are chosen, so that none is chosen twice
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}
