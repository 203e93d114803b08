package ratios_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
)

// storeVar makes a test binary act as a server with its store in the given directory.
const storeVar = "NATSLOCK_SPEED_STORE"

// TestMain runs the tests under [kit.LeakCheck], or acts as the server that [Server]
// starts.
func TestMain(m *testing.M) {
	if dir := os.Getenv(storeVar); dir != "" {
		if err := serve(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(burnVar) != "" {
		burn()
	}
	kit.LeakCheck(m)
}

func serve(dir string) error {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true})
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		return fmt.Errorf("the server does not get ready")
	}
	fmt.Println(s.ClientURL())
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the end of the test closes it
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

// Server starts a server in a process of its own, which ends with the test, and
// returns its URL.
func Server(t testing.TB) string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), storeVar+"="+t.TempDir())
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the server said %q: %v", url, err)
	}
	return strings.TrimSpace(url)
}

// Connect connects to the server until the test ends.
func Connect(t testing.TB, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// Publisher makes bare conditional publishes to one subject of a lock bucket.
type Publisher struct {
	nc      *nats.Conn
	subject string
	last    uint64
	value   []byte
}

// NewPublisher returns a publisher to the key of the named lock.
func NewPublisher(nc *nats.Conn, name string) *Publisher {
	// This is about the size of one of the library's records.
	return &Publisher{nc: nc, subject: "$KV." + kvstore.DefaultBucket + ".lock." + name, value: make([]byte, 100)}
}

func (p *Publisher) message(expect uint64, take bool) *nats.Msg {
	m := nats.NewMsg(p.subject)
	m.Header.Set("Nats-Expected-Last-Subject-Sequence", strconv.FormatUint(expect, 10))
	m.Data = p.value
	if take {
		m.Header.Set("Nats-TTL", "15s")
	} else {
		m.Header.Set("Nats-TTL", "1s")
		m.Header.Set("KV-Operation", "DEL")
	}
	return m
}

// Take writes a record and reports whether the server accepted it.
func (p *Publisher) Take(t testing.TB) bool { return p.publish(t, p.last, true) }

// Release writes a tombstone and reports whether the server accepted it.
func (p *Publisher) Release(t testing.TB) bool { return p.publish(t, p.last, false) }

// Refused makes a write that the server refuses.
func (p *Publisher) Refused(t testing.TB) {
	if p.publish(t, 1, true) {
		t.Fatal("not refused")
	}
}

func (p *Publisher) publish(t testing.TB, expect uint64, take bool) bool {
	r, err := p.nc.RequestMsgWithContext(context.Background(), p.message(expect, take))
	if err != nil {
		t.Fatal(err)
	}
	seq, taken := Sequence(r.Data)
	if taken {
		p.last = seq
	}
	return taken
}

// Cycle makes the two publishes that an uncontended lock and unlock cannot do without.
func (p *Publisher) Cycle(t testing.TB) {
	if !p.Take(t) { // the tombstone has expired
		p.last = 0
		if !p.Take(t) {
			t.Fatal("refused")
		}
	}
	p.Release(t)
}

// Sequence returns the sequence in an acknowledgment, or false for a refusal.
func Sequence(ack []byte) (uint64, bool) {
	if bytes.Contains(ack, []byte(`"error"`)) {
		return 0, false
	}
	_, rest, _ := bytes.Cut(ack, []byte(`"seq":`))
	digits := 0
	for digits < len(rest) && '0' <= rest[digits] && rest[digits] <= '9' {
		digits++
	}
	seq, err := strconv.ParseUint(string(rest[:digits]), 10, 64)
	return seq, err == nil
}

// Beside measures lock and bare alternately and reports the medians, their ratio, and the
// allocations of both.
func Beside(b *testing.B, lock, bare func()) {
	b.Helper()
	var locks, bares []time.Duration
	for b.Loop() {
		t0 := time.Now()
		lock()
		t1 := time.Now()
		bare()
		locks, bares = append(locks, t1.Sub(t0)), append(bares, time.Since(t1))
	}
	l, p := median(locks), median(bares)
	b.ReportMetric(0, "ns/op") // of both together, which means nothing
	b.ReportMetric(float64(l), "lock-ns")
	b.ReportMetric(float64(p), "bare-ns")
	b.ReportMetric(float64(l)/float64(p), "ratio")
	b.ReportMetric(testing.AllocsPerRun(10, lock), "lock-allocs")
	b.ReportMetric(testing.AllocsPerRun(10, bare), "bare-allocs")
}

// Ratio measures lock and bare alternately, n times each, and returns the ratio of their
// medians. Whatever else the machine does delays both alike.
func Ratio(n int, lock, bare func()) float64 {
	var times [2][]time.Duration
	runtime.GC()
	for range n {
		for side, fn := range []func(){lock, bare} {
			begun := time.Now()
			fn()
			times[side] = append(times[side], time.Since(begun))
		}
	}
	return float64(median(times[0])) / float64(median(times[1]))
}

// Rate returns how often per second n goroutines together complete fn, each calling it with
// its own number.
func Rate(n int, d time.Duration, fn func(i int)) float64 {
	counts := make([]int, n)
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for i := range n {
		wg.Go(func() {
			for time.Now().Before(end) {
				fn(i)
				counts[i]++
			}
		})
	}
	wg.Wait()
	total := 0
	for _, c := range counts {
		total += c
	}
	return float64(total) / d.Seconds()
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// BesideTimed is like [Beside] for functions that time themselves.
func BesideTimed(b *testing.B, lock, bare func() time.Duration) {
	b.Helper()
	var locks, bares []time.Duration
	for b.Loop() {
		locks, bares = append(locks, lock()), append(bares, bare())
	}
	l, p := median(locks), median(bares)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(l), "lock-ns")
	b.ReportMetric(float64(p), "bare-ns")
	b.ReportMetric(float64(l)/float64(p), "ratio")
}

// Heap returns the number of bytes in use on the heap.
func Heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Bulk renews many keys with asynchronous publishes.
type Bulk struct {
	nc      *nats.Conn
	keys    []*Publisher
	answers chan *nats.Msg
	inbox   string
}

// NewBulk returns n keys that have not been written yet.
func NewBulk(t testing.TB, nc *nats.Conn, n int) *Bulk {
	k := &Bulk{nc: nc, answers: make(chan *nats.Msg, n), inbox: nc.NewInbox()}
	for i := range n {
		k.keys = append(k.keys, NewPublisher(nc, "bulk."+strconv.Itoa(i)))
	}
	if _, err := nc.ChanSubscribe(k.inbox+".*", k.answers); err != nil {
		t.Fatal(err)
	}
	return k
}

// Renew publishes to all of the keys and waits for the replies.
func (k *Bulk) Renew(t testing.TB) {
	for i, p := range k.keys {
		m := p.message(p.last, true)
		m.Header.Set("Nats-TTL", "3600s")
		m.Reply = k.inbox + "." + strconv.Itoa(i)
		if err := k.nc.PublishMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	for range k.keys {
		m := <-k.answers
		i, err := strconv.Atoi(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
		if err != nil {
			t.Fatal(err)
		}
		seq, taken := Sequence(m.Data)
		if !taken {
			t.Fatalf("refused: %s", m.Data)
		}
		k.keys[i].last = seq
	}
}

// HandOver hands a key over between two connections: a release, its notification, and a
// claim by the side that trusts the notification.
type HandOver struct {
	t     testing.TB
	sides [2]*Publisher
	got   [2]chan *nats.Msg
	n     int
}

// NewHandOver returns a key held by the first of the connections.
func NewHandOver(t testing.TB, ncs [2]*nats.Conn) *HandOver {
	h := &HandOver{t: t}
	js, err := ncs[0].JetStream()
	if err != nil {
		t.Fatal(err)
	}
	info, err := js.StreamInfo("KV_" + kvstore.DefaultBucket)
	if err != nil {
		t.Fatal(err)
	}
	prefix := strings.TrimSuffix(info.Config.RePublish.Destination, ">")
	for i, nc := range ncs {
		h.sides[i] = NewPublisher(nc, "bare.handed")
		h.got[i] = make(chan *nats.Msg, 16)
		if _, err := nc.ChanSubscribe(prefix+"lock.bare.handed", h.got[i]); err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if !h.sides[0].Take(t) {
		t.Fatal("refused")
	}
	return h
}

// Next makes one hand-over and returns how long it took.
func (h *HandOver) Next() time.Duration {
	from, to, got := h.sides[h.n%2], h.sides[(h.n+1)%2], h.got[(h.n+1)%2]
	h.n++
	for len(got) > 0 {
		<-got
	}
	done := make(chan time.Time, 1)
	go func() {
		for m := range got {
			if m.Header.Get("KV-Operation") != "DEL" {
				continue
			}
			// The server's headers follow the writer's.
			seq := m.Header.Values("Nats-Sequence")
			to.last, _ = strconv.ParseUint(seq[len(seq)-1], 10, 64)
			if !to.Take(h.t) {
				h.t.Error("refused")
			}
			done <- time.Now()
			return
		}
	}()
	time.Sleep(3 * time.Millisecond)
	released := time.Now()
	from.Release(h.t)
	return (<-done).Sub(released)
}
