package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/natslock/locks/internal/tool"
)

const (
	headerTime   = 10 * time.Second // bounds reading the header of a request
	shutdownTime = 5 * time.Second  // bounds the end of requests under way
)

// run serves the metrics and follows the bucket until ctx ends, and returns nil then.
func (c *cli) run(ctx context.Context, log *slog.Logger) error {
	if err := checkPattern("names", c.Names); err != nil {
		return err
	}
	for _, p := range c.Pattern {
		if err := checkPattern("pattern", p); err != nil {
			return err
		}
	}
	f := &follower{c: c, log: log, refused: make(chan error, 1), restart: func(error) {}}
	f.state = newState(labeler(c.Pattern), func() bool { return f.nc.IsConnected() })
	if err := f.connect(); err != nil {
		return err
	}
	defer f.nc.Close()
	if len(c.Pattern) > 0 {
		for _, label := range append(slices.Clone(c.Pattern), other) {
			f.state.register(label)
		}
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return tool.Usagef("--listen %s: %w", tool.Plain(c.Listen), err)
	}
	log.Info("serving", "url", fmt.Sprintf("http://%s/metrics", listener.Addr()))
	return serve(ctx, listener, f)
}

// serve answers requests while the follower runs, and ends with it.
func serve(ctx context.Context, listener net.Listener, f *follower) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{Handler: handler(f), ReadHeaderTimeout: headerTime}
	var serving sync.WaitGroup
	var failed error // of the HTTP server, before ctx ends
	serving.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed = fmt.Errorf("serve the metrics at %s: %w", listener.Addr(), err)
			cancel()
		}
	})
	err := f.run(ctx)
	ending, end := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer end()
	if server.Shutdown(ending) != nil {
		_ = server.Close()
	}
	serving.Wait()
	return errors.Join(err, failed)
}

func handler(f *follower) http.Handler {
	mux := http.NewServeMux()
	r := registry(f.state, f.c.Bucket)
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(f.log.Handler(), slog.LevelError)}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := f.healthy(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "natslock-exporter: see /metrics and /healthz\n")
	})
	return mux
}
