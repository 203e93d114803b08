package session

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/tool"
)

// startLimit is how long a server may take to read its store.
const startLimit = 10 * time.Second

// startPoll is how often StartServer checks whether the server is ready.
const startPoll = 10 * time.Millisecond

// ServerVersion is the version of the NATS server built into lockctl.
const ServerVersion = server.VERSION

// Server is a NATS server that runs in this process and listens on the loopback interface. It
// ends with the process.
type Server struct {
	srv    *server.Server
	unlock func()
}

// StartKept starts a server that keeps its data under dir or, if dir is empty, in the user's
// cache directory. Port 0 means any free port. A file lock keeps other processes from using the
// same directory, because the server itself does not prevent that.
func StartKept(dir string, port int) (*Server, error) {
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return nil, tool.Exitf(tool.ExitUnavailable, "no place for the server's data: %w; name one with --dir", err)
		}
		dir = filepath.Join(cache, "lockctl")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, tool.Exitf(tool.ExitUnavailable, "no place for the server's data: %w; name another one with --dir", err)
	}
	owner := filepath.Join(dir, "owner")
	unlock, err := lockFile(owner)
	if err != nil {
		who, _ := os.ReadFile(owner)
		url, pid, ok := strings.Cut(strings.TrimSpace(string(who)), " ")
		if !ok {
			return nil, tool.Exitf(tool.ExitUnavailable, "another lockctl server uses %s: %w", dir, err)
		}
		return nil, tool.Exitf(tool.ExitUnavailable, "another lockctl server (pid %s) uses %s; you can use its server too: --server %s", pid, dir, url)
	}
	s, err := StartServer(filepath.Join(dir, "jetstream"), port)
	if err != nil {
		unlock()
		return nil, err
	}
	s.unlock = unlock
	// Store the server's URL for a process that finds the directory in use.
	if err := os.WriteFile(owner, fmt.Appendf(nil, "%s %d\n", s.URL(), os.Getpid()), 0o600); err != nil {
		s.Stop()
		return nil, tool.Exitf(tool.ExitUnavailable, "the server's data: %w", err)
	}
	return s, nil
}

// StartServer starts a server that keeps its data in dir. Port 0 means any free port.
func StartServer(dir string, port int) (*Server, error) {
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: cmp.Or(port, server.RANDOM_PORT),
		JetStream: true, StoreDir: dir,
		NoSigs: true, NoLog: true, DisableJetStreamBanner: true,
	})
	if err != nil {
		return nil, tool.Exitf(tool.ExitUnavailable, "server in this process: %w", err)
	}
	log := &serverLog{}
	srv.SetLoggerV2(log, false, false, false)
	srv.Start()
	for end := time.Now().Add(startLimit); !srv.ReadyForConnections(startPoll) || !srv.JetStreamEnabled(); {
		if log.first() != "" || time.Now().After(end) {
			srv.Shutdown()
			srv.WaitForShutdown()
			return nil, tool.Exitf(tool.ExitUnavailable, "server in this process: %s", cmp.Or(log.first(), "not ready after "+show.Brief(startLimit)))
		}
	}
	return &Server{srv: srv, unlock: func() {}}, nil
}

// URL returns the server's URL.
func (s *Server) URL() string { return s.srv.ClientURL() }

// Stop shuts the server down and returns once it has written its data.
func (s *Server) Stop() {
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
	s.unlock()
}

// serverLog is a logger that keeps the server's first error and drops everything else.
type serverLog struct {
	mu  sync.Mutex
	err string
}

func (l *serverLog) first() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *serverLog) Errorf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == "" {
		l.err = fmt.Sprintf(format, v...)
	}
}

func (l *serverLog) Fatalf(format string, v ...any) { l.Errorf(format, v...) }
func (l *serverLog) Noticef(string, ...any)         {}
func (l *serverLog) Warnf(string, ...any)           {}
func (l *serverLog) Debugf(string, ...any)          {}
func (l *serverLog) Tracef(string, ...any)          {}
