package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.etcd.io/etcd/server/v3/embed"
)

// childEnv is the environment variable that contains a child's configuration. Once its server
// is ready, the child prints childReady and the server's process ID.
const (
	childEnv   = "NATSLOCK_BENCH_SERVER"
	childReady = "ready "
)

// childConfig describes a single server of a class.
type childConfig struct {
	Kind   string
	Number int
	Dir    string
	Port   int
	Peers  []int // peer ports of all servers; a single port means no cluster
	Memory bool
	Sync   bool
	Redis  string
}

func (c childConfig) name(i int) string { return c.Kind + strconv.Itoa(i) }

// runChild runs a server and exits if this process was started as a child. Otherwise it returns
// immediately.
func runChild() {
	text := os.Getenv(childEnv)
	if text == "" {
		return
	}
	signal.Ignore(os.Interrupt) // the parent decides when to end
	var c childConfig
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		switch c.Kind {
		case "nats":
			err = runNATS(c)
		case "redis":
			err = runRedis(c)
		case "etcd":
			err = runEtcd(c)
		default:
			err = fmt.Errorf("unknown server %q", c.Kind)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve tells the parent that the server is ready, and waits until the parent closes standard
// input or exits.
func serve(pid int) {
	fmt.Println(childReady + strconv.Itoa(pid))
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func runNATS(c childConfig) error {
	opts := &server.Options{
		ServerName: c.name(c.Number), Host: "127.0.0.1", Port: c.Port,
		JetStream: true, StoreDir: c.Dir, SyncAlways: c.Sync, NoSigs: true,
	}
	if len(c.Peers) > 1 {
		opts.Cluster = server.ClusterOpts{Name: "bench", Host: "127.0.0.1", Port: c.Peers[c.Number]}
		for _, p := range c.Peers {
			opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(p))})
		}
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(patience) {
		return errors.New("nats-server is not ready")
	}
	serve(os.Getpid())
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

func runEtcd(c childConfig) error {
	at := func(port int) url.URL {
		return url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	}
	cfg := embed.NewConfig()
	cfg.Name = c.name(c.Number)
	cfg.Dir = c.Dir
	cfg.LogLevel = "error"
	cfg.UnsafeNoFsync = !c.Sync
	cfg.ListenClientUrls = []url.URL{at(c.Port)}
	cfg.AdvertiseClientUrls = cfg.ListenClientUrls
	cfg.ListenPeerUrls = []url.URL{at(c.Peers[c.Number])}
	cfg.AdvertisePeerUrls = cfg.ListenPeerUrls
	var members []string
	for i, p := range c.Peers {
		peer := at(p)
		members = append(members, c.name(i)+"="+peer.String())
	}
	cfg.InitialCluster = strings.Join(members, ",")
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		return err
	}
	serve(os.Getpid())
	e.Close()
	return nil
}

func runRedis(c childConfig) error {
	args := []string{"--bind", "127.0.0.1", "--port", strconv.Itoa(c.Port), "--dir", c.Dir, "--save", "", "--daemonize", "no"}
	switch {
	case c.Memory:
		args = append(args, "--appendonly", "no")
	case c.Sync:
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
	default:
		args = append(args, "--appendonly", "yes", "--appendfsync", "everysec")
	}
	cmd := exec.Command(c.Redis, args...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for !answers(c.Port) {
		select {
		case err := <-ended:
			return errors.Join(errors.New("redis-server ended"), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	serve(cmd.Process.Pid)
	_ = cmd.Process.Kill() // its data is no longer needed
	<-ended
	return nil
}

// answers reports whether a Redis server responds on a port.
func answers(port int) bool {
	c, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), time.Second)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := io.WriteString(c, "PING\r\n"); err != nil {
		return false
	}
	pong := make([]byte, 5)
	_, err = io.ReadFull(c, pong)
	return err == nil && string(pong) == "+PONG"
}
