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
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// patience is how long a server may take to start or to end, and a step beyond its time.
const patience = 30 * time.Second

// Servers are the servers of one class, each a process of its own.
type Servers struct {
	Class   Class
	NATS    []string          // URLs
	Redis   []string          // host:port
	Etcd    []string          // URLs
	Missing map[string]string // why there is none of a kind
	procs   map[string][]*child
	dir     string // for the files of processes
}

// child is a process that ends when its standard input does. Not even a bench
// that is killed leaves a child behind.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ready chan error
	pid   int32 // of the server itself, set when it is ready

	killed sync.Once
}

// startServers starts the servers that are installed, with data below dir.
func startServers(ctx context.Context, class Class, dir, redisServer string) (_ *Servers, err error) {
	s := &Servers{Class: class, Missing: map[string]string{}, procs: map[string][]*child{}, dir: filepath.Join(dir, class.Name)}
	defer func() {
		if err != nil {
			s.Stop()
		}
	}()
	kinds := []string{"nats"}
	if path, err := exec.LookPath(redisServer); err != nil {
		s.Missing["redis"] = redisServer + " is not installed"
	} else {
		redisServer = path
		kinds = append(kinds, "redis")
	}
	if !class.Memory {
		kinds = append(kinds, "etcd")
	}
	for _, kind := range kinds {
		ports, err := freePorts(2 * class.Replicas)
		if err != nil {
			return nil, err
		}
		clients, peers := ports[:class.Replicas], ports[class.Replicas:]
		for i, port := range clients {
			c := childConfig{
				Kind: kind, Number: i, Dir: filepath.Join(dir, class.Name, kind+strconv.Itoa(i)),
				Port: port, Peers: peers, Memory: class.Memory, Sync: class.Sync, Redis: redisServer,
			}
			p, err := startChild(c)
			if err != nil {
				return nil, err
			}
			s.procs[kind] = append(s.procs[kind], p)
			addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			switch kind {
			case "nats":
				s.NATS = append(s.NATS, "nats://"+addr)
			case "redis":
				s.Redis = append(s.Redis, addr)
			case "etcd":
				s.Etcd = append(s.Etcd, "http://"+addr)
			}
		}
	}
	for _, kind := range kinds {
		if err := s.waitFor(ctx, kind); err != nil {
			if kind == "nats" {
				return nil, err
			}
			s.Missing[kind] = err.Error()
		}
	}
	return s, s.placeable(ctx)
}

// waitFor waits until the processes of a kind are ready.
func (s *Servers) waitFor(ctx context.Context, kind string) error {
	for _, p := range s.procs[kind] {
		if err := p.wait(ctx, kind); err != nil {
			return err
		}
	}
	return nil
}

// wait waits until the process is ready.
func (p *child) wait(ctx context.Context, what string) error {
	select {
	case err := <-p.ready:
		if err != nil {
			return fmt.Errorf("%s does not start: %w", what, err)
		}
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s was not ready within %v", what, patience)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// kill ends the process as a crash does.
func (p *child) kill() {
	p.killed.Do(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
}

// placeable waits until the cluster can place streams.
func (s *Servers) placeable(ctx context.Context) error {
	nc, err := connectNATS(s)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
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
			return fmt.Errorf("the NATS servers place no stream: %w", err)
		}
	}
}

// Stop ends all of them.
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

// startChild starts this program again, as a server or a holder.
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
		p.ready <- fmt.Errorf("it ended: %s", tail(said, 300))
	}()
	return p, nil
}

func tail(text []byte, n int) string {
	return strings.TrimSpace(string(text[max(0, len(text)-n):]))
}

// freePorts finds ports that no program listens on.
func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // when all are chosen, so that none is chosen twice
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}
