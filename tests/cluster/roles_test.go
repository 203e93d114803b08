package cluster_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
)

// The roles of the processes that the tests start. They write their reports as lines of
// JSON, and end with their standard input.

// holderOrder is the task of a holder.
type holderOrder struct {
	URL   string
	TTL   time.Duration
	Locks []which
}

// report is a holder's report on one lock.
type report struct {
	Which which
	Token uint64

	// Checked is the last time that the lock said it was held, to a worker that
	// asks before every write.
	Checked time.Time
	// Accepted is when a worker that never asks began its last write that the resource
	// accepted. Refused is how many of its writes the resource refused as stale.
	Accepted time.Time
	Refused  int
	// DoneAt is when the context ended. LostAt is when the state first was not Held, by a
	// goroutine that polls it all the time.
	DoneAt, LostAt time.Time
	Cause          string
	Revived        bool // held again after it had not been
	// Extend and Unlock are the errors of these in the end.
	Extend, Unlock string
}

// beHolder takes the locks, and says so when it works under all of them. It reports for
// each line on its standard input.
func beHolder(text []byte) error {
	var o holderOrder
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	nc, err := nats.Connect(o.URL, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	ctx := context.Background()
	kv, err := js.KeyValue(ctx, "work")
	if err != nil {
		return err
	}
	c, err := natslock.New(ctx, nc, natslock.WithTTL(o.TTL), natslock.WithCreate(false))
	if err != nil {
		return err
	}
	say := json.NewEncoder(os.Stdout)
	var shifts []*shift
	for _, w := range o.Locks {
		l, err := w.take(ctx, c)
		if err != nil {
			return err
		}
		s := &shift{l: l, work: resource{kv}, report: report{Which: w, Token: l.Token()}}
		go s.careful()
		go s.careless()
		go s.watch()
		go s.poll()
		shifts = append(shifts, s)
	}
	for _, s := range shifts {
		for !s.atWork() {
			time.Sleep(time.Millisecond)
		}
	}
	if err := say.Encode(len(shifts)); err != nil {
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var all []report
		for _, s := range shifts {
			all = append(all, s.end())
		}
		if err := say.Encode(all); err != nil {
			return err
		}
	}
	return nil
}

// shift is the work under one lock.
type shift struct {
	l    *natslock.Lock
	work resource

	mu sync.Mutex
	report
}

func (s *shift) note(fn func(*report)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn(&s.report)
}

// atWork reports whether both workers have begun.
func (s *shift) atWork() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.Checked.IsZero() && !s.Accepted.IsZero()
}

// careful asks before every write. It cannot take back a write that it has begun.
func (s *shift) careful() {
	for {
		at := time.Now()
		if s.l.Remaining() == 0 {
			return
		}
		s.note(func(r *report) { r.Checked = at })
		_, _ = s.work.write(s.l.Context(), s.Which.Name, s.Token)
		time.Sleep(5 * time.Millisecond)
	}
}

// careless goes on writing, even when the lock is lost.
func (s *shift) careless() {
	for {
		at := time.Now()
		_, err := s.work.write(context.Background(), s.Which.Name, s.Token)
		s.note(func(r *report) {
			switch {
			case err == nil:
				r.Accepted = at
			case errors.Is(err, errStale):
				r.Refused++
			}
		})
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *shift) watch() {
	<-s.l.Context().Done()
	at := time.Now()
	s.note(func(r *report) { r.DoneAt, r.Cause = at, fmt.Sprint(context.Cause(s.l.Context())) })
}

func (s *shift) poll() {
	for ; ; time.Sleep(time.Millisecond) {
		at := time.Now()
		held := s.l.Remaining() > 0
		s.note(func(r *report) {
			switch {
			case held:
				r.Revived = r.Revived || !r.LostAt.IsZero()
			case r.LostAt.IsZero():
				r.LostAt = at
			}
		})
	}
}

func (s *shift) end() report {
	extend, unlock := s.l.Extend(context.Background(), 0), s.l.Unlock(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Extend, s.Unlock = fmt.Sprint(extend), fmt.Sprint(unlock)
	return s.report
}

// courierOrder has a courier adopt a lock. Without a handle it takes the lock and hands it
// over.
type courierOrder struct {
	URL, Name string
	TTL       time.Duration
	Handle    *natslock.Handle
}

// delivery is the report of a courier.
type delivery struct {
	Handle *natslock.Handle
	Token  uint64
	Err    string
}

// beCourier takes a lock and hands it over, or adopts one, and reports that. At the end of
// its standard input it unlocks a lock that it holds.
func beCourier(text []byte) error {
	var o courierOrder
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	nc, err := nats.Connect(o.URL)
	if err != nil {
		return err
	}
	ctx := context.Background()
	c, err := natslock.New(ctx, nc, natslock.WithTTL(o.TTL))
	if err != nil {
		return err
	}
	var d delivery
	var l *natslock.Lock
	if o.Handle != nil {
		if l, err = c.Adopt(ctx, *o.Handle); err == nil {
			d.Token = l.Token()
		}
	} else if l, err = c.Lock(ctx, o.Name); err == nil {
		d.Token = l.Token()
		var h natslock.Handle
		h, err = l.Handoff(ctx)
		d.Handle = &h
	}
	if err != nil {
		d.Err = err.Error()
	}
	if err := json.NewEncoder(os.Stdout).Encode(d); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	if l != nil {
		err = errors.Join(err, l.Unlock(ctx))
	}
	return err
}

// contenderOrder is the task of a contender: to hold a mutex for a moment, again and again,
// until its standard input ends.
type contenderOrder struct {
	URL, Owner, Name string
	TTL              time.Duration
}

func beContender(text []byte) error {
	var o contenderOrder
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	nc, err := nats.Connect(o.URL)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	c, err := natslock.New(ctx, nc, natslock.WithOwner(o.Owner), natslock.WithTTL(o.TTL), natslock.WithCreate(false))
	if err != nil {
		return err
	}
	for {
		l, err := c.Lock(ctx, o.Name)
		if ctx.Err() != nil {
			return c.Close(context.Background())
		}
		if err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
		if err := l.Unlock(ctx); err != nil {
			return err
		}
	}
}

// serverOrder is the setup of a server process.
type serverOrder struct {
	Port     int // 0: a free one
	StoreDir string
}

// beServer is a nats-server, until it is killed or its standard input ends. It prints its
// port.
func beServer(text []byte) error {
	var o serverOrder
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	opts := &server.Options{
		Host: "127.0.0.1", Port: o.Port, JetStream: true, StoreDir: o.StoreDir,
		NoSigs: true, NoLog: true, JetStreamMaxMemory: 1 << 30, JetStreamMaxStore: 4 << 30,
	}
	if o.Port == 0 {
		opts.Port = server.RANDOM_PORT
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	srv.Start()
	defer func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	}()
	if !srv.ReadyForConnections(kit.Patience / 2) {
		return errors.New("the server does not get ready")
	}
	fmt.Println(opts.Port)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}
