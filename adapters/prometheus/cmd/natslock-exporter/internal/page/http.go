package page

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/natslock/admin"
)

// writeTime limits how long a viewer may take to read one chunk of an update.
const writeTime = 10 * time.Second

// part is the size of the chunks in which an update is written, in bytes.
const part = 32 << 10

// policy is the Content-Security-Policy. It keeps browsers from loading or running anything from
// outside this page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

//go:embed web
var web embed.FS

// server handles the page's requests.
type server struct {
	hub       *Hub
	hosts     []string // host names of this page, in addition to IP addresses and localhost
	histories chan struct{}
	writeTime time.Duration
}

// Handler serves a hub's page. hosts are the names by which browsers reach it, in addition to IP
// addresses and localhost. Requests for any other name are refused, because a foreign site could
// otherwise read the page through DNS rebinding.
func Handler(h *Hub, hosts []string) http.Handler {
	return (&server{hub: h, hosts: hosts, histories: make(chan struct{}, mostHistories), writeTime: writeTime}).handler()
}

func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", file("index.html"))
	mux.Handle("GET /lock", file("lock.html"))
	mux.HandleFunc("GET /group", s.group)
	entries, err := web.ReadDir("web")
	if err != nil {
		panic(err) // the files are embedded in the program
	}
	for _, e := range entries {
		if path.Ext(e.Name()) != ".html" {
			mux.Handle("GET /"+e.Name(), file(e.Name()))
		}
	}
	mux.HandleFunc("GET /live", s.live)
	mux.HandleFunc("GET /history", s.history)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
			"Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
			"Cache-Control": "no-store",
		} {
			w.Header().Set(name, value)
		}
		// Do not let a client take forever to read a response. A stream sets its own deadlines.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(historyTime + s.writeTime))
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "this page is read-only; use GET or HEAD", http.StatusMethodNotAllowed)
		case !s.named(r.Host):
			http.Error(w, fmt.Sprintf("%q is not an allowed host name for this page; allow it with --page-host", r.Host), http.StatusForbidden)
		case foreign(r):
			http.Error(w, "pages from other sites may not read this one", http.StatusForbidden)
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

// named reports whether host, from a request's Host header, is a name of this page.
func (s *server) named(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	_, err := netip.ParseAddr(name)
	return err == nil || name == "localhost" ||
		slices.ContainsFunc(s.hosts, func(h string) bool { return strings.EqualFold(h, name) })
}

// foreign reports whether, according to the browser, the request comes from a page of another
// site. Following a link to this page does not count.
func foreign(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		return err != nil || !strings.EqualFold(u.Host, r.Host)
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return false
	}
	return r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document"
}

// kinds maps file extensions to media types, regardless of the machine's settings.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// file returns a handler for one of the page's files.
func file(name string) http.Handler {
	text, err := web.ReadFile("web/" + name)
	if err != nil {
		panic(err) // the files are embedded in the program
	}
	sum := sha256.Sum256(text)
	tag, kind := `"`+hex.EncodeToString(sum[:8])+`"`, kinds[path.Ext(name)]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("ETag", tag)
		w.Header().Set("Cache-Control", "no-cache")
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(text))
	})
}

// lockOf returns the lock that a request names, or nil if it names none.
func lockOf(r *http.Request) (*mirror.ID, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	if !q.Has("kind") && !q.Has("name") {
		return nil, nil
	}
	for _, kind := range []admin.Kind{admin.KindMutex, admin.KindRW, admin.KindSemaphore} {
		if q.Get("kind") == kind.String() && q.Get("name") != "" {
			return &mirror.ID{Kind: kind, Name: q.Get("name")}, nil
		}
	}
	return nil, fmt.Errorf("no such kind of lock: %q", q.Get("kind"))
}

// live streams the updates of the table, or of a single lock, as server-sent events.
func (s *server) live(w http.ResponseWriter, r *http.Request) {
	lock, err := lockOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	head := func() {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		w.Header().Set("X-Accel-Buffering", "no") // for nginx
		w.Header().Set("Connection", "close")     // the deadlines below apply to the connection
		w.WriteHeader(http.StatusOK)
	}
	if r.Method == http.MethodHead {
		head()
		return
	}
	v, err := s.hub.watch(lock)
	if err != nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer v.leave()
	head()
	to := http.NewResponseController(w)
	for last := false; !last; {
		var text []byte
		text, last = v.receive(r.Context())
		for chunk := range slices.Chunk(text, part) {
			if to.SetWriteDeadline(time.Now().Add(s.writeTime)) != nil {
				return
			}
			if _, err := w.Write(chunk); err != nil {
				return
			}
			if to.Flush() != nil {
				return
			}
		}
	}
}

// history serves the history of a lock.
func (s *server) history(w http.ResponseWriter, r *http.Request) {
	lock, err := lockOf(r)
	if err != nil || lock == nil {
		http.Error(w, "specify the kind and the name of a lock", http.StatusBadRequest)
		return
	}
	ago, err := time.ParseDuration(r.URL.Query().Get("for"))
	if err != nil || ago <= 0 {
		http.Error(w, "invalid \"for\": use a duration such as 1h", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodHead {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), historyTime)
	defer cancel()
	_ = json.NewEncoder(w).Encode(s.tell(ctx, *lock, ago))
}
