package testutil

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

const (
	// startTimeout limits the total time of all attempts to start one server. It is
	// generous because -race is slow on a busy machine.
	startTimeout = 30 * time.Second
	// reconnectWait is the pause between reconnect attempts of this package's
	// connections.
	reconnectWait = 50 * time.Millisecond
	// bubbleURL is the address that connections in a bubble pretend to dial. It has no
	// host name, because resolving one is I/O.
	bubbleURL = "nats://127.0.0.1:4222"
)

// config holds a server's options.
type config struct {
	jetStream bool
	storeDir  string // empty for the test's temporary directory
	text      string // the content of a configuration file
	set       []func(*server.Options)
	log       bool
}

// ServerOption configures the servers of [RunServer], [RunCluster] and [Bubble]. By
// default, JetStream is on, and there are no users and no log.
type ServerOption func(*config)

// WithConfig calls set to change the server's options before every start, including
// restarts. Each start begins with new options, so set must build new accounts and users
// each time.
//
// set runs last and may change anything. If it changes ports or the store directory,
// the server does not keep them across a restart.
func WithConfig(set func(*server.Options)) ServerOption {
	return func(c *config) { c.set = append(c.set, set) }
}

// WithConfigText configures the server with the text of a NATS configuration file,
// which may set users, permissions, accounts and anything else. The address, port,
// JetStream and store directory are still set by this package.
func WithConfigText(text string) ServerOption {
	return func(c *config) { c.text = text }
}

// WithoutJetStream starts the server without JetStream, to show what a client sees when
// it is pointed at the wrong server.
func WithoutJetStream() ServerOption {
	return func(c *config) { c.jetStream = false }
}

// WithStoreDir keeps JetStream's data in dir, which outlives the test: this package
// neither creates nor removes it. By default, the data goes in the test's own temporary
// directory. In a cluster, each server has its own directory under dir.
func WithStoreDir(dir string) ServerOption {
	return func(c *config) { c.storeDir = dir }
}

// WithLog copies the server's log, without debug and trace lines, to the test's log. By
// default nothing is logged.
func WithLog() ServerOption {
	return func(c *config) { c.log = true }
}

// Server is an embedded NATS server that belongs to one test and stops when the test
// ends.
type Server struct {
	t      testing.TB
	cfg    config
	bubble bool
	dir    string
	base   func(*server.Options) // set by a cluster, for name and routes

	mu      sync.Mutex // never held during I/O, because a reconnecting client takes it
	srv     *server.Server
	log     *serverLog
	port    int
	running bool
}

// RunServer starts a NATS server on a free port of 127.0.0.1, with JetStream and its own
// store directory, and returns once the server accepts connections. When the test ends,
// a cleanup stops the server and waits for it. If the server does not start, the test
// ends with the server's errors.
//
// No signal handler is installed and nothing is logged.
func RunServer(t testing.TB, opts ...ServerOption) *Server {
	t.Helper()
	s := newServer(t, t, opts)
	s.mustStart()
	return s
}

// newServer prepares a server that stops with t and whose directory belongs to outer.
// The two differ only in a bubble.
func newServer(t, outer testing.TB, opts []ServerOption) *Server {
	t.Helper()
	s := &Server{t: t, cfg: config{jetStream: true}}
	for _, o := range opts {
		o(&s.cfg)
	}
	s.dir = s.cfg.storeDir
	if s.dir == "" {
		s.dir = filepath.Join(outer.TempDir(), "jetstream")
		// A goroutine of the stopped server may still be writing a file. Remove the
		// directory here, with retries, because TempDir tries only once and then fails
		// the test.
		outer.Cleanup(func() { removeAll(s.dir) })
	}
	t.Cleanup(s.Stop)
	return s
}

// removeAll removes dir, retrying for a few seconds.
func removeAll(dir string) {
	for end := time.Now().Add(5 * time.Second); os.RemoveAll(dir) != nil && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}

// URL returns the address to connect to, without credentials. It stays the same across
// restarts. In a bubble it is a placeholder: connect with [Server.Connect], or pass
// [Server.Dialer] to nats.Connect.
func (s *Server) URL() string {
	if s.bubble {
		return bubbleURL
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return "nats://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
}

// Server returns the underlying nats-server, for anything this package has no method
// for. [Server.Restart] replaces it.
func (s *Server) Server() *server.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.srv
}

// Running reports whether the server has been started and not stopped.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// StoreDir returns JetStream's data directory.
func (s *Server) StoreDir() string { return s.dir }

// Dialer returns the option that makes nats.Connect(s.URL(), ...) reach this server
// even in a bubble. Use it in tests that expect the connection to fail, because
// [Server.Connect] would then end the test.
func (s *Server) Dialer() nats.Option { return nats.SetCustomDialer(s.newLink()) }

// Connect connects to the server, and closes the connection when the test ends. If it
// cannot connect, it ends the test.
//
// Unless opts override this, the connection reconnects forever, at intervals of 50 ms.
func (s *Server) Connect(opts ...nats.Option) *nats.Conn {
	s.t.Helper()
	if s.bubble {
		// Do not use nats.InProcessServer. It is an unbuffered pipe, on which client and
		// server can wait for each other to read while holding mutexes, which stops the
		// bubble's clock. A link buffers like a socket.
		nc, _ := s.ConnectLink(opts...)
		return nc
	}
	return connect(s.t, s.URL(), nil, opts)
}

// ConnectLink is [Server.Connect] through a [Link] that the test can disrupt. It works
// over TCP and in a bubble.
func (s *Server) ConnectLink(opts ...nats.Option) (*nats.Conn, *Link) {
	s.t.Helper()
	l := s.newLink()
	return connect(s.t, s.URL(), l, opts), l
}

func (s *Server) newLink() *Link {
	if s.bubble {
		l := newLink(func(string, string) (net.Conn, error) { return s.InProcessConn() })
		l.bubble = true
		return l
	}
	return NewLink()
}

// InProcessConn returns a new in-process connection to the running server, like the
// nats-server method of the same name. It fails if the server is stopped. It lets a
// Server be passed to nats.InProcessServer.
func (s *Server) InProcessConn() (net.Conn, error) {
	s.mu.Lock()
	srv, running := s.srv, s.running
	s.mu.Unlock()
	if !running {
		return nil, errors.New("testutil: the server is not running")
	}
	return srv.InProcessConn()
}

// connect dials url, through l unless l is nil. It closes the connection and l when the
// test ends.
func connect(t testing.TB, url string, l *Link, opts []nats.Option) *nats.Conn {
	t.Helper()
	all := []nats.Option{
		nats.Name(t.Name()),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(0, 0),
	}
	if l != nil {
		all = append(all, nats.SetCustomDialer(l), nats.ErrorHandler(reportExceptCuts))
	}
	nc, err := nats.Connect(url, append(all, opts...)...)
	if err != nil {
		t.Fatalf("testutil: connect to %s: %v", url, err)
	}
	t.Cleanup(func() {
		if l != nil {
			l.close() // first, because a blocked write would hold up nc.Close
		}
		nc.Close()
	})
	return nc
}

// reportExceptCuts writes errors to standard error, as nats.go does by default, except
// those that a test caused by cutting a link.
func reportExceptCuts(nc *nats.Conn, _ *nats.Subscription, err error) {
	if !errors.Is(err, errLinkCut) {
		fmt.Fprintf(os.Stderr, "nats: %v on connection %q\n", err, nc.Opts.Name)
	}
}

// Stop shuts the server down gracefully and waits for it. Stopping a stopped server
// does nothing. The port and the data are kept for [Server.Restart].
func (s *Server) Stop() {
	s.mu.Lock()
	srv, log, running := s.srv, s.log, s.running
	s.running = false
	s.mu.Unlock()
	if !running {
		return
	}
	srv.Shutdown()
	srv.WaitForShutdown()
	log.end()
	if !s.bubble {
		outside.stopped()
	}
}

// Restart stops the server if it is running and starts it again on the same port with
// the same store directory. It returns once the server accepts connections, or ends the
// test.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.mustStart()
}

func (s *Server) mustStart() {
	s.t.Helper()
	if err := s.start(); err != nil {
		s.t.Fatalf("testutil: start server: %v", err)
	}
}

// start starts the server. It retries if the port is in use, because another process may
// have taken it between the call to freePort and the server's call to listen.
func (s *Server) start() error {
	end := time.Now().Add(startTimeout)
	for {
		fixed := s.port != 0
		port := s.port
		if !fixed && !s.bubble {
			var err error
			if port, err = freePort(); err != nil {
				return err
			}
		}
		err := s.startOn(port)
		if err == nil {
			return nil
		}
		if !strings.Contains(err.Error(), "address already in use") || time.Now().After(end) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *Server) startOn(port int) error {
	opts, err := s.options(port)
	if err != nil {
		return err
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	log := &serverLog{}
	if s.cfg.log {
		log.t = s.t
	}
	srv.SetLoggerV2(log, false, false, false)
	srv.Start()
	// Start opens the listener itself, so if there is none now, there never will be.
	listens := opts.DontListen || srv.Addr() != nil
	if !listens || !srv.ReadyForConnections(startTimeout/2) || (opts.JetStream && !srv.JetStreamEnabled()) {
		srv.Shutdown()
		srv.WaitForShutdown()
		return fmt.Errorf("the server is not ready: %s", log.errors())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.srv, s.log, s.running = srv, log, true
	if !s.bubble {
		outside.started()
	}
	if addr, ok := srv.Addr().(*net.TCPAddr); ok && !s.bubble {
		s.port = addr.Port
	}
	return nil
}

func (s *Server) options(port int) (*server.Options, error) {
	opts := &server.Options{}
	if s.cfg.text != "" {
		f, err := os.CreateTemp("", "natslock-*.conf")
		if err != nil {
			return nil, err
		}
		defer os.Remove(f.Name())
		_, err = f.WriteString(s.cfg.text)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
		if opts, err = server.ProcessConfigFile(f.Name()); err != nil {
			return nil, fmt.Errorf("configuration: %w", err)
		}
		opts.ConfigFile = ""
	}
	opts.Host, opts.Port = "127.0.0.1", port
	opts.DontListen = s.bubble
	opts.NoSigs = true
	opts.NoLog = true
	opts.JetStream = s.cfg.jetStream
	opts.DisableJetStreamBanner = true
	opts.StoreDir = s.dir
	// Use fixed limits, so that they do not depend on the machine's free memory and
	// disk.
	opts.JetStreamMaxMemory = 1 << 30
	opts.JetStreamMaxStore = 4 << 30
	if s.base != nil {
		s.base(opts)
	}
	for _, set := range s.cfg.set {
		set(opts)
	}
	return opts, nil
}

// freePort finds a port on which nothing listens. It searches below the range that
// operating systems use for outgoing connections and for listeners on port 0, so no
// other process gets the port by chance while a server restarts.
func freePort() (int, error) {
	var err error
	for range 100 {
		port := 15000 + rand.IntN(17000)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no free port: %w", err)
}
