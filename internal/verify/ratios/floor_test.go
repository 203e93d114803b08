//go:build unix

package ratios_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
)

// BenchmarkFloor measures an uncontended acquire and release, and what they are built on: the
// same two conditional writes made through the store, through the nats.go API, and by a client
// that knows only the bytes. It reports this process's CPU time per cycle. The server is a
// separate process.
func BenchmarkFloor(b *testing.B) {
	url := Server(b)
	c := speedClient(b, url)
	js, err := jetstream.New(Connect(b, url))
	require.NoError(b, err)
	store, err := kvstore.Open(b.Context(), js, kvstore.Config{})
	require.NoError(b, err)
	b.Cleanup(store.Close)
	for _, way := range []struct {
		name  string
		cycle func(b *testing.B)
	}{
		{"lock", func(b *testing.B) { cycle(b, c, "floor") }},
		{"store", newStorePair(store, "lock.floor.store").cycle},
		{"publish", newPublishPair(Connect(b, url), "floor.publish").cycle},
		{"socket", newSocketPair(b, url, "lock.floor.socket").cycle},
	} {
		b.Run(way.name, func(b *testing.B) {
			way.cycle(b)
			b.ReportAllocs()
			begun := cpu(b)
			b.ResetTimer()
			for range b.N {
				way.cycle(b)
			}
			b.StopTimer()
			b.ReportMetric(float64((cpu(b)-begun).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpu returns the CPU time that this process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func newPublishPair(nc *nats.Conn, name string) publishPair {
	return publishPair{NewPublisher(nc, name)}
}

type publishPair struct{ *Publisher }

func (p publishPair) cycle(b *testing.B) { p.Cycle(b) }

// storePair makes the two writes with [kvstore.Store.Send].
type storePair struct {
	store   *kvstore.Store
	key     string
	value   []byte
	last    uint64
	answers chan kvstore.Answer
	answer  func(kvstore.Answer)
}

func newStorePair(store *kvstore.Store, key string) *storePair {
	p := &storePair{store: store, key: key, value: make([]byte, 100), answers: make(chan kvstore.Answer, 1)}
	p.answer = func(a kvstore.Answer) { p.answers <- a }
	return p
}

func (p *storePair) cycle(b *testing.B) {
	if !p.send(b, kvstore.Write{TTL: 15 * time.Second}) { // the tombstone has expired
		p.last = 0
		require.True(b, p.send(b, kvstore.Write{TTL: 15 * time.Second}))
	}
	require.True(b, p.send(b, kvstore.Write{Delete: true}))
}

func (p *storePair) send(b *testing.B, w kvstore.Write) bool {
	w.Key, w.Value, w.Expect = p.key, p.value, p.last
	forget, err := p.store.Send(w, p.answer)
	if err != nil {
		b.Fatal(err)
	}
	a := <-p.answers
	forget()
	if a.Err == nil {
		p.last = a.Revision
	}
	return a.Err == nil
}

// socketPair makes the two writes with the bytes that nats.go would send.
type socketPair struct {
	conn    net.Conn
	r       *bufio.Reader
	subject string
	value   []byte
	last    uint64
	buf     []byte
	n       uint64 // the number of the request
}

const socketInbox = "_INBOX.floor0123456789abcdef"

func newSocketPair(b *testing.B, server, key string) *socketPair {
	u, err := url.Parse(server)
	require.NoError(b, err)
	conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", u.Host)
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	p := &socketPair{
		conn: conn, r: bufio.NewReaderSize(conn, 32<<10), subject: "$KV." + kvstore.DefaultBucket + "." + key, value: make([]byte, 100),
	}
	_, err = fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\nSUB %s.* 1\r\n", socketInbox)
	require.NoError(b, err)
	return p
}

func (p *socketPair) cycle(b *testing.B) {
	if !p.write(b, "15s", "") {
		p.last = 0
		require.True(b, p.write(b, "15s", ""))
	}
	require.True(b, p.write(b, "1s", "KV-Operation: DEL\r\n"))
}

func (p *socketPair) write(b *testing.B, ttl, more string) bool {
	p.n++
	var digits [20]byte
	expect := strconv.AppendUint(digits[:0], p.last, 10)
	header := len("NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: \r\nNats-TTL: \r\n\r\n") + len(expect) + len(ttl) + len(more)
	m := append(p.buf[:0], "HPUB "...)
	m = append(append(m, p.subject...), ' ')
	m = append(append(m, socketInbox...), '.')
	m = append(strconv.AppendUint(m, p.n, 36), ' ')
	m = append(strconv.AppendInt(m, int64(header), 10), ' ')
	m = append(strconv.AppendInt(m, int64(header+len(p.value)), 10), "\r\nNATS/1.0\r\nNats-Expected-Last-Subject-Sequence: "...)
	m = append(append(m, expect...), "\r\nNats-TTL: "...)
	m = append(append(append(append(m, ttl...), "\r\n"...), more...), "\r\n"...)
	p.buf = append(append(m, p.value...), "\r\n"...)
	if _, err := p.conn.Write(p.buf); err != nil {
		b.Fatal(err)
	}
	for {
		line, err := p.r.ReadSlice('\n')
		if err != nil {
			b.Fatal(err)
		}
		switch {
		case bytes.HasPrefix(line, []byte("PING")):
			if _, err := p.conn.Write([]byte("PONG\r\n")); err != nil {
				b.Fatal(err)
			}
			continue
		case !bytes.HasPrefix(line, []byte("MSG ")):
			continue
		}
		line = bytes.TrimRight(line, "\r\n")
		size, err := strconv.Atoi(string(line[bytes.LastIndexByte(line, ' ')+1:]))
		if err != nil {
			b.Fatal(err)
		}
		answer, err := p.r.Peek(size + 2)
		if err != nil {
			b.Fatal(err)
		}
		last, taken := Sequence(answer)
		if _, err := p.r.Discard(size + 2); err != nil {
			b.Fatal(err)
		}
		if taken {
			p.last = last
		}
		return taken
	}
}
