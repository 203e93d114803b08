package main

import (
	"cmp"
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

	"github.com/natslock/locks/adapters/prometheus/cmd/natslock-exporter/internal/page"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/tool"
)

const (
	headerTime   = 10 * time.Second // limits how long reading a request's header may take
	shutdownTime = 5 * time.Second  // limits how long requests may take to finish at shutdown
	idleTime     = time.Minute      // limits how long a connection may be idle
	maxHeader    = 16 << 10         // limits the size of a request's header, in bytes
)

// run serves the metrics and follows the bucket until ctx ends, and then returns nil.
func (c *cli) run(ctx context.Context, log *slog.Logger) error {
	if err := checkPattern("names", c.Names); err != nil {
		return err
	}
	for _, p := range c.Pattern {
		if err := checkPattern("pattern", p); err != nil {
			return err
		}
	}
	if c.Listen == "" { // "" would mean a random port on every address
		return tool.Usagef("--listen is empty; set an address such as :9622")
	}
	f, err := newFollower(c, log)
	if err != nil {
		return err
	}
	defer f.nc.Close()
	if len(c.Pattern) > 0 {
		for _, label := range append(slices.Clone(c.Pattern), other) {
			f.state.register(label)
		}
	}
	metrics, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return tool.Usagef("--listen %s: %w", plain.Text(c.Listen), err)
	}
	sites := []site{{"metrics", metrics, handler(f)}}
	log.Info("serving", "url", fmt.Sprintf("http://%s/metrics", metrics.Addr()))
	looks, err := c.listenPage(log)
	if err != nil {
		_ = metrics.Close()
		return err
	}
	if looks != nil {
		f.hub = page.NewHub(f.mirror, page.About{Bucket: c.Bucket, Names: c.Names, Server: f.url, Shows: func(name string) bool { return matches(c.Names, name) }})
		sites = append(sites, site{"page", looks, page.Handler(f.hub, c.pageHosts())})
		log.Info("serving the page", "page", fmt.Sprintf("http://%s/", looks.Addr()))
	}
	return serve(ctx, sites, f)
}

// listenPage opens the page's listener. It returns nil if the page is turned off, or if its
// default address is taken.
func (c *cli) listenPage(log *slog.Logger) (net.Listener, error) {
	if c.NoPage || c.Page == "" { // "" would mean a random port on every address
		return nil, nil
	}
	looks, err := net.Listen("tcp", c.Page)
	switch {
	case err == nil:
		if at, ok := looks.Addr().(*net.TCPAddr); ok && !at.IP.IsLoopback() {
			log.Warn("the page has no login and is reachable from other machines", "page", looks.Addr().String())
		}
		return looks, nil
	case c.Page == defaultPage: // most likely taken by another exporter on this machine; continue, because the metrics matter more
		log.Warn("not serving the page; choose another address with --page, or disable it with --no-page", "page", c.Page, "error", err)
		return nil, nil
	}
	return nil, tool.Usagef("--page %s: %w", plain.Text(c.Page), err)
}

// pageHosts returns the page's host names: those that the user gave, and the one in the
// page's address.
func (c *cli) pageHosts() []string {
	hosts := slices.Clone(c.PageHost)
	if host, _, err := net.SplitHostPort(c.Page); err == nil && host != "" {
		hosts = append(hosts, host)
	}
	return hosts
}

// site is a listener and what it serves.
type site struct {
	what     string
	listener net.Listener
	handler  http.Handler
}

// serve handles requests while the follower runs, and returns when the follower does.
func serve(ctx context.Context, sites []site, f *follower) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var serving sync.WaitGroup
	failed := make([]error, len(sites)) // errors that stopped the HTTP servers before ctx ended
	var servers []*http.Server
	for i, s := range sites {
		server := &http.Server{Handler: s.handler, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader}
		servers = append(servers, server)
		serving.Go(func() {
			if err := server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
				failed[i] = fmt.Errorf("serve the %s at %s: %w", s.what, s.listener.Addr(), err)
				cancel()
			}
		})
	}
	if f.hub != nil {
		serving.Go(func() { f.hub.Run(ctx) })
	}
	err := f.run(ctx)
	cancel()
	if f.hub != nil {
		f.hub.End(cmp.Or(err, errors.New("the exporter was stopped")).Error())
	}
	ending, end := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer end()
	for _, server := range servers {
		if server.Shutdown(ending) != nil {
			_ = server.Close()
		}
	}
	serving.Wait()
	return plain.Join(append([]error{err}, failed...)...)
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
