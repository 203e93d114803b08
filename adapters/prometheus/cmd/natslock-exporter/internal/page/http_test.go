package page

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock/admin"
)

// patience bounds each wait for an event, with plenty to spare.
const patience = time.Minute

func get(t *testing.T, h http.Handler, method, address string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, "http://127.0.0.1:9623"+address, nil)
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestRequests(t *testing.T) {
	h := Handler(running(t, newSource()), []string{"locks.example.org"})
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	header := func(pairs ...string) func(*http.Request) {
		return func(r *http.Request) {
			for i := 0; i < len(pairs); i += 2 {
				r.Header.Set(pairs[i], pairs[i+1])
			}
		}
	}
	for _, c := range []struct {
		method, address string
		change          func(*http.Request)
		code            int
		says            string
	}{
		{"GET", "/", nil, 200, "<title>Locks</title>"},
		{"HEAD", "/", nil, 200, ""},
		{"GET", "/lock?kind=mutex&name=a", nil, 200, "<title>Lock</title>"},
		{"GET", "/group", nil, 400, "specify a group"}, {"GET", "/group?name=none", nil, 200, "no members among"}, {"GET", "/group.html", nil, 404, ""},
		{"GET", "/group?name=%3Cb%3E", nil, 200, "&lt;b&gt;"},
		{"GET", "/lib.js", nil, 200, "export function"},
		{"GET", "/index.html", nil, 404, ""},
		{"GET", "/web/", nil, 404, ""},
		{"GET", "/../http.go", nil, 307, "/http.go"}, {"GET", "/http.go", nil, 404, ""},
		{"HEAD", "/live", nil, 200, ""},
		{"GET", "/live?kind=lock&name=a", nil, 400, "no such kind"},
		{"GET", "/live?kind=mutex", nil, 400, "no such kind"},
		{"GET", "/live?kind=mutex&name=%ZZ", nil, 400, "invalid URL escape"},
		{"GET", "/history?kind=mutex", nil, 400, "specify the kind and the name of a lock"},
		{"GET", "/history?kind=mutex&name=a&for=ever", nil, 400, `invalid "for"`},
		{"GET", "/history?kind=mutex&name=a&for=-1h", nil, 400, `invalid "for"`},
		{"GET", "/history?kind=mutex&name=a&for=1h", nil, 200, "is not following the bucket"},
		{"POST", "/", nil, 405, "read-only"}, {"PUT", "/live", nil, 405, "read-only"}, {"DELETE", "/nowhere", nil, 405, "read-only"}, {"OPTIONS", "/", nil, 405, "read-only"},

		{"GET", "/", host("localhost:9623"), 200, ""}, {"GET", "/", host("[::1]:9623"), 200, ""}, {"GET", "/", host("[fe80::1%25eth0]:9623"), 200, ""}, {"GET", "/", host("::1"), 200, ""}, {"GET", "/", host("10.1.2.3"), 200, ""},
		{"GET", "/", host("Locks.Example.org:443"), 200, ""}, {"GET", "/", host("locks.example.org."), 200, ""},
		{"GET", "/", host("evil.example.org"), 403, "--page-host"}, {"GET", "/live", host("evil.example.org:9623"), 403, "--page-host"},
		{"GET", "/", host("localhost.evil.org"), 403, "--page-host"}, {"GET", "/", host(""), 403, "--page-host"},

		{"GET", "/history?kind=mutex&name=a&for=1h", header("Origin", "http://127.0.0.1:9623"), 200, ""},
		{"GET", "/history?kind=mutex&name=a&for=1h", header("Origin", "http://127.0.0.1:9999"), 403, "other sites"},
		{"GET", "/live", header("Origin", "null"), 403, "other sites"},
		{"GET", "/live", header("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"), 403, "other sites"},
		{"GET", "/live", header("Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"), 403, "other sites"},
		{"GET", "/", header("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"), 200, ""},
		{"GET", "/", header("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"), 403, "other sites"},
		{"GET", "/lib.js", header("Sec-Fetch-Site", "same-origin"), 200, ""},
	} {
		change := c.change
		if change == nil {
			change = func(*http.Request) {}
		}
		w := get(t, h, c.method, c.address, change)
		require.Equal(t, c.code, w.Code, "%s %s: %s", c.method, c.address, w.Body)
		require.Contains(t, w.Body.String(), c.says, "%s %s", c.method, c.address)
		require.Equal(t, policy, w.Header().Get("Content-Security-Policy"), "%s %s", c.method, c.address)
		require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
		require.Equal(t, "DENY", w.Header().Get("X-Frame-Options"))
		require.Empty(t, w.Header().Get("Access-Control-Allow-Origin"))
		if c.method == "HEAD" {
			require.Empty(t, w.Body.String())
		}
	}

	// A browser revalidates a cached file.
	w := get(t, h, "GET", "/page.css")
	require.Equal(t, "text/css; charset=utf-8", w.Header().Get("Content-Type"))
	require.Equal(t, "no-cache", w.Header().Get("Cache-Control"))
	require.Equal(t, 304, get(t, h, "GET", "/page.css", header("If-None-Match", w.Header().Get("ETag"))).Code)
}

// TestFilesAreStrict checks that the files load nothing from other sites, contain no inline scripts
// or styles, and never turn text into markup.
func TestFilesAreStrict(t *testing.T) {
	entries, err := web.ReadDir("web")
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	total := 0
	for _, e := range entries {
		text, err := web.ReadFile("web/" + e.Name())
		require.NoError(t, err)
		total += len(text)
		for _, bad := range []string{
			`\sstyle=`, `\son\w+=`, `<style`, `<script(>| [^>]*[^>]>[^<])`, `javascript:`, `innerHTML`, `outerHTML`, `insertAdjacent`, `document\.write`, `\beval\(`, `new Function`,
			`@import`, `url\(`, `srcdoc`, `(src|rel="stylesheet" href)="(https?:)?//`, `createContextualFragment`, `DOMParser`, `localStorage`,
		} {
			require.NotRegexp(t, regexp.MustCompile(bad), string(text), e.Name())
		}
	}
	require.Less(t, total, 64<<10)
}

// stream reads the updates of a stream.
type stream struct {
	t    *testing.T
	body *bufio.Reader
}

func (s stream) next() (up update) {
	s.t.Helper()
	text, err := s.body.ReadString('\n')
	require.NoError(s.t, err)
	end, err := s.body.ReadString('\n')
	require.NoError(s.t, err)
	require.Equal(s.t, "\n", end)
	require.NoError(s.t, json.Unmarshal([]byte(strings.TrimPrefix(text, "data: ")), &up))
	return up
}

func open(t *testing.T, address string) (stream, *http.Response) {
	t.Helper()
	ctx, end := context.WithTimeout(t.Context(), patience)
	t.Cleanup(end)
	r, err := http.NewRequestWithContext(ctx, "GET", address, nil)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = answer.Body.Close() })
	return stream{t, bufio.NewReader(answer.Body)}, answer
}

// TestLive checks streaming over a real connection: names that look like markup are sent as data,
// the number of viewers is limited, and all of them are told the reason when the hub ends.
func TestLive(t *testing.T) {
	s := newSource()
	h := running(t, s)
	at := httptest.NewServer(Handler(h, nil))
	defer at.Close()
	name := "</script><img src=x onerror=alert(1)>\n\ndata: {}"
	one := held("<b>", func(h *admin.Holder) { h.Meta = map[string]string{"</dl>": "<script>"} })
	s.set(name, &one)

	table, answer := open(t, at.URL+"/live")
	require.Equal(t, "text/event-stream; charset=utf-8", answer.Header.Get("Content-Type"))
	require.Equal(t, "no-store", answer.Header.Get("Cache-Control"))
	up := table.next()
	require.Equal(t, "<b> on vm:7", up.Rows[0].Holder)
	lock, _ := open(t, at.URL+"/live?kind=mutex&name="+up.Rows[0].Key)
	up = lock.next()
	require.Equal(t, "held", up.Lock.State)
	require.Equal(t, [][2]string{{"</dl>", "<script>"}}, up.Lock.Holders[0].Meta)

	for range MostViewers - 2 {
		open(t, at.URL+"/live")
	}
	_, answer = open(t, at.URL+"/live")
	require.Equal(t, 503, answer.StatusCode)
	require.Equal(t, "10", answer.Header.Get("Retry-After"))
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.Contains(t, string(text), errFull.Error())

	h.End("the exporter was stopped")
	for up = table.next(); up.Bye == ""; up = table.next() {
	}
	require.Equal(t, "the exporter was stopped", up.Bye)
	_, err = table.body.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	viewersLeave(t, h, 0)
}

// viewersLeave waits until n viewers are left.
func viewersLeave(t *testing.T, h *Hub, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.viewers) == n
	}, patience, 5*time.Millisecond)
}

// TestStuckBrowser checks that a browser that reads nothing is disconnected and does not hold up
// others.
func TestStuckBrowser(t *testing.T) {
	s := newSource()
	h := running(t, s)
	srv := &server{hub: h, histories: make(chan struct{}, 1), writeTime: 100 * time.Millisecond}
	at := httptest.NewServer(srv.handler())
	defer at.Close()
	defer h.End("the test is over")
	for i := range 20_000 { // more than a connection buffers
		one := held(strings.Repeat("web", 100))
		s.set(fmt.Sprint("lock.", i), &one)
	}
	conn, err := net.Dial("tcp", at.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(t, err)
	viewersAre := func() int { h.mu.Lock(); defer h.mu.Unlock(); return len(h.viewers) }
	require.Eventually(t, func() bool { return viewersAre() == 1 }, patience, time.Millisecond)

	quick, _ := open(t, at.URL+"/live")
	require.Len(t, quick.next().Rows, 20_000)
	s.set("lock.0", nil)
	for len(quick.next().Gone) == 0 {
	}
	viewersLeave(t, h, 1)
}
