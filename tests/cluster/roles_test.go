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

// The following are the roles of the processes that the tests start. Each process writes its
// reports as lines of JSON and exits when its standard input ends.

// holderOrder tells a holder which locks to take.
type holderOrder struct {
	URL   string
	TTL   time.Duration
	Locks []which
}

// report is a holder's report on one lock.
type report struct {
	Which which
	Token uint64

	// Checked is when the lock last reported itself held to a worker that checks before every
	// write.
	Checked time.Time
	// Accepted is when a worker that never checks began its last accepted write. Refused is how
	// many of its writes the resource refused as stale.
	Accepted time.Time
	Refused  int
	// DoneAt is when the context ended. LostAt is when a goroutine that polls the state
	// continuously first found the lock not held.
	DoneAt, LostAt time.Time
	Cause          string
	Revived        bool // held again after it was lost
	// Extend and Unlock are the final errors of these methods.
	Extend, Unlock string
}

// beHolder takes the locks and announces when it is working under all of them. It reports whenever
// it reads a line from its standard input.
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

// careful checks the lock before every write, but cannot take back a write that it has begun.
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

// careless keeps writing even after the lock is lost.
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

// courierOrder has a courier adopt a lock or, without a handle, take the lock and hand it over.
type courierOrder struct {
	URL, Name string
	TTL       time.Duration
	Handle    *natslock.Handle
}

// delivery is a courier's report.
type delivery struct {
	Handle *natslock.Handle
	Token  uint64
	Err    string
}

// beCourier takes a lock and hands it over, or adopts one, and reports the result. When its
// standard input ends, it unlocks the lock if it still holds it.
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

// contenderOrder tells a contender to hold a mutex for a moment, over and over, until its standard
// input ends.
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

// serverOrder configures a server process.
type serverOrder struct {
	Port     int // 0 for a free one
	StoreDir string
}

// beServer runs a nats-server until it is killed or its standard input ends. It prints the server's
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
