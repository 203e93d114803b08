package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// embedded is a NATS server in this process, on a free port of the loopback
// interface. It ends with the process.
type embedded struct {
	srv    *server.Server
	unlock func()
}

// startCached starts a server whose data survives the process, under the user's
// cache directory. One process at a time can have it: the server does not
// protect its own directory, so a file lock does.
func startCached() (*embedded, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, exitf(exitUnavailable, "--embedded has no place for its data: %w", err)
	}
	dir := filepath.Join(cache, "lockctl")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, exitf(exitUnavailable, "--embedded: %w", err)
	}
	owner := filepath.Join(dir, "owner")
	unlock, err := lockFile(owner)
	if err != nil {
		who, _ := os.ReadFile(owner)
		url, pid, ok := strings.Cut(strings.TrimSpace(string(who)), " ")
		if !ok {
			return nil, exitf(exitUnavailable, "another lockctl --embedded uses %s: %w", dir, err)
		}
		return nil, exitf(exitUnavailable, "another lockctl --embedded (pid %s) uses %s; its server is yours too: --server %s", pid, dir, url)
	}
	e, err := startServer(filepath.Join(dir, "jetstream"))
	if err != nil {
		unlock()
		return nil, err
	}
	e.unlock = unlock
	// The name of the server for those who find the directory taken.
	if err := os.WriteFile(owner, fmt.Appendf(nil, "%s %d\n", e.url(), os.Getpid()), 0o600); err != nil {
		e.stop()
		return nil, exitf(exitUnavailable, "--embedded: %w", err)
	}
	return e, nil
}

// startServer starts a server with its data in dir.
func startServer(dir string) (*embedded, error) {
	srv, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT,
		JetStream: true, StoreDir: dir,
		NoSigs: true, NoLog: true, DisableJetStreamBanner: true,
	})
	if err != nil {
		return nil, exitf(exitUnavailable, "embedded server: %w", err)
	}
	log := &serverLog{}
	srv.SetLoggerV2(log, false, false, false)
	srv.Start()
	if !srv.ReadyForConnections(10*time.Second) || !srv.JetStreamEnabled() {
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, exitf(exitUnavailable, "embedded server did not start: %s", log.first())
	}
	return &embedded{srv: srv, unlock: func() {}}, nil
}

func (e *embedded) url() string { return e.srv.ClientURL() }

// stop waits until the server has written what it has.
func (e *embedded) stop() {
	e.srv.Shutdown()
	e.srv.WaitForShutdown()
	e.unlock()
}

// serverLog keeps the server's first error and drops the rest.
type serverLog struct {
	mu  sync.Mutex
	err string
}

func (l *serverLog) first() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == "" {
		return "it is not ready after 10 s"
	}
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
