package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
	"github.com/natslock/locks/testutil"
)

// shownUpdate is an update as a browser receives it.
type shownUpdate struct {
	Health struct{ Why string }
	All    bool
	Rows   []shownRow
	Gone   []int
	Due    [][2]int64
	Lines  []struct{ Event, Kind, Name, Who string }
	Left   int
	Bye    string
	Lock   *struct {
		State   string
		Group   string
		Holders []struct {
			Title, Who, Broken string
			Meta               [][2]string
		}
		Queue []struct{ Who, Mode string }
	}
}

type shownRow struct {
	ID                             int
	Kind, Name, Key, State, Holder string
	Queue                          int
}

// browserOf follows the page of an exporter as a browser does, either the table or a single lock.
type browserOf struct {
	t    testing.TB
	text *bufio.Reader
	rows map[int]shownRow
	last shownUpdate
	all  strings.Builder // the events
}

func (p *process) browse(query string) *browserOf {
	p.t.Helper()
	ctx, end := context.WithCancel(p.t.(*testing.T).Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.page()+"live"+query, nil)
	require.NoError(p.t, err)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { end(); _ = answer.Body.Close(); http.DefaultClient.CloseIdleConnections() })
	require.Equal(p.t, 200, answer.StatusCode)
	return &browserOf{t: p.t, text: bufio.NewReaderSize(answer.Body, 1<<20), rows: make(map[int]shownRow)}
}

// read reads an update.
func (b *browserOf) read() {
	b.t.Helper()
	line, err := b.text.ReadString('\n')
	require.NoError(b.t, err)
	_, err = b.text.ReadString('\n')
	require.NoError(b.t, err)
	b.last = shownUpdate{}
	require.NoError(b.t, json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &b.last))
	if b.last.All {
		clear(b.rows)
	}
	for _, r := range b.last.Rows {
		b.rows[r.ID] = r
	}
	for _, id := range b.last.Gone {
		delete(b.rows, id)
	}
	for _, l := range b.last.Lines {
		fmt.Fprintf(&b.all, "%s %s %s\n", l.Event, l.Name, l.Who)
	}
}

// until reads updates until a condition holds.
func (b *browserOf) until(what string, holds func() bool) {
	b.t.Helper()
	for limit := time.Now().Add(patience); ; {
		b.read()
		if holds() {
			return
		}
		require.True(b.t, time.Now().Before(limit), "%s: %+v", what, b.rows)
	}
}

// row returns the row of the lock with this display name.
func (b *browserOf) row(name string) shownRow {
	for _, r := range b.rows {
		if r.Name == name {
			r.ID = 0
			return r
		}
	}
	return shownRow{}
}

// TestPage follows locks of all kinds on the page through grants, queues, a break, a hand-off and
// an outage.
func TestPage(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	a, _ := client(t, s, natslock.WithOwner("<b>web</b> on "+hostName()))
	w, _ := client(t, s, natslock.WithOwner("worker on "+hostName()))
	const odd = "odd.\xff\n<img src=x onerror=alert(1)>"
	hold(t, a, odd, natslock.Meta(map[string]string{"<script>": "</script>"}))
	p := follow(t, s)
	table := p.browse("")
	table.until("the list", func() bool { return len(table.rows) == 1 })
	name := `"odd.\xff\n<img src=x onerror=alert(1)>"`
	require.Equal(t, shownRow{Kind: "mutex", Name: name, Key: url.QueryEscape(odd), State: "exclusive", Holder: "<b>web</b> on " + hostName()}, table.row(name))
	one := p.browse("?kind=mutex&name=" + url.QueryEscape(odd))
	one.until("the lock", func() bool { return one.last.Lock != nil && one.last.Lock.State == "held" })
	require.Equal(t, [][2]string{{"<script>", "</script>"}}, one.last.Lock.Holders[0].Meta)

	l := hold(t, a, "orders.1")
	got := later(t, w, "orders.1")
	table.until("a queue", func() bool { return table.row("orders.1").Queue == 1 })
	queue := p.browse("?kind=mutex&name=orders.1")
	queue.until("a queue", func() bool { return queue.last.Lock != nil && len(queue.last.Lock.Queue) == 1 })
	require.Equal(t, "worker on "+hostName(), queue.last.Lock.Queue[0].Who)
	unlock(t, l)
	table.until("a hand-over", func() bool { r := table.row("orders.1"); return r.Queue == 0 && strings.HasPrefix(r.Holder, "worker") })
	second := <-got
	unlock(t, second)
	table.until("its end", func() bool { return table.row("orders.1").Name == "" })
	queue.until("its end", func() bool { return queue.last.Lock != nil && queue.last.Lock.State == "free" })
	require.Contains(t, table.all.String(), "queued orders.1 worker")
	require.Contains(t, table.all.String(), "released orders.1 <b>web</b>")

	r, err := rwlock.New(a).RLock(context.Background(), "index")
	require.NoError(t, err)
	permit, err := semaphore.New(w, 3).Acquire(context.Background(), "gpu")
	require.NoError(t, err)
	table.until("a reader and a permit", func() bool { return table.row("index").State == "shared 1" && table.row("gpu").State == "1 of 3" })
	unlock(t, permit)
	unlock(t, r)

	left := hold(t, a, "left", natslock.TTL(time.Hour))
	h, err := left.Handoff(context.Background())
	require.NoError(t, err)
	table.until("a hand-off", func() bool { return table.row("left").State == "exclusive" })
	adopted, err := w.Adopt(context.Background(), h)
	require.NoError(t, err)
	table.until("its end", func() bool { return table.row("left").State == "exclusive" })
	require.NoError(t, admin.New(a).Break(context.Background(), admin.BreakRequest{Name: "left", ID: adopted.ID(), Reason: "<test>"}))
	table.until("a break", func() bool { return strings.Contains(table.all.String(), "broken left") })
	require.ErrorIs(t, adopted.Unlock(context.Background()), natslock.ErrBroken)

	s.Stop()
	table.until("an outage", func() bool { return table.last.Health.Why != "" })
	require.Contains(t, table.last.Health.Why, "lost the connection to nats://127.0.0.1:")
	require.NotEmpty(t, table.row(name).Name, "what was known is still shown")
	s.Restart()
	table.until("its end", func() bool { return table.last.Health.Why == "" })
	require.NotEmpty(t, table.row(name).Name)

	// A page learns that the exporter is shutting down, and open pages do not delay the exit.
	require.Equal(t, 0, p.stop())
	table.until("the end", func() bool { return table.last.Bye != "" })
	require.Equal(t, "the exporter was stopped", table.last.Bye)
	_, err = io.Copy(io.Discard, table.text)
	require.NoError(t, err)
}

// shownStory is a history as a browser receives it.
type shownStory struct {
	Spans       []struct{ Who, How string }
	Lines       []struct{ Event, Name string }
	Why, Remedy string
}

func (p *process) story(name string) (out shownStory) {
	p.t.Helper()
	answer, err := http.Get(p.page() + "history?for=1h&kind=mutex&name=" + url.QueryEscape(name))
	require.NoError(p.t, err)
	defer answer.Body.Close()
	require.Equal(p.t, 200, answer.StatusCode)
	require.NoError(p.t, json.NewDecoder(answer.Body).Decode(&out))
	http.DefaultClient.CloseIdleConnections()
	return out
}

// TestPageHistory checks that a lock's history comes from the bucket and covers only this lock.
// Without a history, or without permission to read it, the page says so, suggests a remedy and
// shows what the exporter itself has seen.
func TestPageHistory(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfigText(permissions(t)))
	root := natsUser("root")
	c := clientOn(t, s.Connect(root))
	p := follow(t, s, "--user=reader", "--password=secret")
	narrow := follow(t, s, "--user=narrow", "--password=secret", "--names=orders.>")
	unlock(t, hold(t, c, "orders.*"))
	unlock(t, hold(t, c, "orders.1"))
	table := p.browse("")
	table.until("events", func() bool { return strings.Contains(table.all.String(), "released orders.1") })

	story := p.story("orders.*")
	require.Equal(t, "Bucket natslock does not keep a history.", story.Why)
	require.Contains(t, story.Remedy, "\nlockctl init --bucket natslock --history 7d")
	require.Len(t, story.Lines, 2, "what the exporter has seen")
	require.Len(t, story.Spans, 1)

	js, err := jetstream.New(s.Connect(root))
	require.NoError(t, err)
	bucket, err := js.Stream(t.Context(), "KV_natslock")
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), kvstore.HistoryStream(bucket.CachedInfo(), time.Hour, 0))
	require.NoError(t, err)
	require.Eventually(t, func() bool { // a write may precede the start of copying
		unlock(t, hold(t, c, "orders.1"))
		unlock(t, hold(t, c, "orders.*"))
		story = p.story("orders.*")
		return story.Why == "" && len(story.Spans) > 0
	}, patience, 10*time.Millisecond)
	for _, l := range story.Lines {
		require.Equal(t, "orders.*", l.Name, "a name is no pattern")
	}
	require.Equal(t, "released", story.Spans[0].How)

	story = narrow.story("orders.1")
	require.Contains(t, story.Why, "The exporter's user may not read the history")
	require.Contains(t, story.Why, "HISTORY_natslock")
	require.Contains(t, story.Remedy, "\nlockctl perms 'orders.>' --role observer --history --bucket natslock")
	require.NotEmpty(t, story.Lines)

	for _, x := range []*process{narrow, follow(t, s, "--user=reader", "--password=secret", "--names=orders.>")} {
		story = x.story("payroll")
		require.Equal(t, "this page shows only the locks orders.>", story.Why, "a name that is guessed")
		require.Empty(t, story.Lines)
	}
}

// TestPageOfGroup checks a group's page with locks that the exporter has listed and with locks that
// it learned about from notifications.
func TestPageOfGroup(t *testing.T) {
	s := testutil.RunServer(t)
	c, _ := client(t, s)
	hold(t, c, "team.x.member.w0", natslock.Meta(map[string]string{"member": "w0", "weight": "1", "partitions": "4"}))
	hold(t, c, "team.x.part.0", natslock.Meta(map[string]string{"member": "w0"}))
	p := follow(t, s)
	group := func() string {
		answer, err := http.Get(p.page() + "group?name=team.x")
		require.NoError(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.Equal(t, 200, answer.StatusCode)
		return string(text)
	}
	require.Contains(t, group(), "partitions: 4, members: 1, unowned: 3, in motion: 0")
	b := p.browse("?kind=mutex&name=team.x.part.1")
	hold(t, c, "team.x.part.1", natslock.Meta(map[string]string{"member": "gone"}))
	b.until("its hold", func() bool { return b.last.Lock != nil && b.last.Lock.State == "held" })
	require.Equal(t, "team.x", b.last.Lock.Group)
	require.Contains(t, group(), "partitions: 4, members: 1, unowned: 2, in motion: 1")
	http.DefaultClient.CloseIdleConnections()
}

// TestNoPage checks the flag that disables the page. An address in use is an error if it was
// requested explicitly, and a warning otherwise. Metrics and page never share an address.
func TestNoPage(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	client(t, s)
	p := follow(t, s, "--no-page")
	require.NotContains(t, p.text(), "serving the page")
	status, _ := p.get("/live")
	require.Equal(t, 404, status)

	first := follow(t, s)
	answer, err := http.Get(first.page() + "metrics")
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, 404, answer.StatusCode)
	taken := strings.TrimSuffix(strings.TrimPrefix(first.page(), "http://"), "/")
	second := launch(t, "--server="+s.URL(), "--page="+taken)
	require.Equal(t, 64, second.exit())
	require.Contains(t, second.text(), "--page "+taken)
	if l, err := net.Listen("tcp", defaultPage); err == nil { // otherwise the address is already in use
		defer l.Close()
	}
	looks, err := (&cli{Page: defaultPage}).listenPage(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Nil(t, looks)
	looks, err = (&cli{}).listenPage(slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.Nil(t, looks, "an empty address is none, and not every one")
	http.DefaultClient.CloseIdleConnections()
}
