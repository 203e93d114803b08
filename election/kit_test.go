package election_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// name is the election's name in every test.
const name = "the.election"

// member is a client with its own connection and a link that tests can disrupt.
type member struct {
	*natslock.Client
	nc     *nats.Conn
	link   *testutil.Link
	faults *faults.Store
}

func join(t testing.TB, s *testutil.Server, opts ...natslock.Option) *member {
	t.Helper()
	m := &member{}
	m.nc, m.link = s.ConnectLink()
	m.Client, m.faults = kit.Faulty(t, m.nc, 1, opts...)
	return m
}

func (m *member) elect(v string, opts ...election.Option) *election.Election {
	return election.New(m.Client, name, append([]election.Option{election.Value([]byte(v))}, opts...)...)
}

// campaign wins the election immediately or fails the test.
func campaign(t testing.TB, e *election.Election) *election.Term {
	t.Helper()
	return begin(t, e).Granted(t)
}

// candidacy is a campaign in progress.
type candidacy = kit.Call[*election.Term]

func begin(t testing.TB, e *election.Election) *candidacy {
	c := kit.Begin(t, e.Campaign)
	t.Cleanup(func() { c.Cancel(nil); <-c.Done })
	return c
}

// runner runs Run in its own goroutine. Its lead function keeps going until told to stop.
type runner struct {
	*election.Election
	cancel context.CancelFunc
	done   chan struct{}
	err    error
	reign  *reign
	name   string
	resign chan struct{} // makes the current lead return
}

func run(t testing.TB, e *election.Election, r *reign, name string) *runner {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	x := &runner{Election: e, cancel: cancel, done: make(chan struct{}), reign: r, name: name, resign: make(chan struct{})}
	t.Cleanup(func() { cancel(); <-x.done })
	go func() {
		defer close(x.done)
		x.err = e.Run(ctx, x.lead)
	}()
	return x
}

func (x *runner) lead(ctx context.Context, t *election.Term) error {
	end := x.reign.begin(x.name, t.Token())
	defer end()
	select {
	case <-ctx.Done():
	case <-x.resign:
	}
	return nil
}

// reign records the terms of an election and checks them.
type reign struct {
	mu    sync.Mutex
	terms []period
	wrong []string
	more  chan struct{} // closed and replaced on every change
}

type period struct {
	name       string
	token      uint64
	begin, end time.Time // end is zero while the term lasts
}

func newReign() *reign { return &reign{more: make(chan struct{})} }

func (r *reign) begin(name string, token uint64) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.terms {
		if p.end.IsZero() {
			r.wrong = append(r.wrong, fmt.Sprintf("%s begins while %s leads", name, p.name))
		}
		if p.token >= token {
			r.wrong = append(r.wrong, fmt.Sprintf("the token of %s is %d after %d of %s", name, token, p.token, p.name))
		}
	}
	i := len(r.terms)
	r.terms = append(r.terms, period{name: name, token: token, begin: time.Now()})
	r.changed()
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.terms[i].end = time.Now()
		r.changed()
	}
}

func (r *reign) changed() {
	close(r.more)
	r.more = make(chan struct{})
}

func (r *reign) all() []period {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.terms)
}

// wait waits for term n, counting from 0, to begin and returns it.
func (r *reign) wait(t testing.TB, n int) period {
	t.Helper()
	timer := time.NewTimer(10 * kit.Patience)
	defer timer.Stop()
	for {
		r.mu.Lock()
		more := r.more
		if len(r.terms) > n {
			defer r.mu.Unlock()
			return r.terms[n]
		}
		r.mu.Unlock()
		select {
		case <-more:
		case <-timer.C:
			t.Fatalf("waited in vain for term %d", n)
		}
	}
}

// judge fails the test if two leaders overlapped or a token did not increase.
func (r *reign) judge(t testing.TB) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Empty(t, r.wrong)
}

// observed collects what Observe yields.
type observed struct {
	mu   sync.Mutex
	all  []election.Leader
	at   []time.Time
	err  error
	over chan struct{}
	stop context.CancelFunc
}

// observe starts an observer and returns once it has yielded the first state.
func observe(t testing.TB, e *election.Election) *observed {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	o := &observed{over: make(chan struct{}), stop: cancel}
	first := make(chan struct{})
	begun := sync.OnceFunc(func() { close(first) })
	t.Cleanup(func() { cancel(); <-o.over })
	go func() {
		defer close(o.over)
		defer begun()
		for l, err := range e.Observe(ctx) {
			o.mu.Lock()
			if err != nil {
				o.err = err
			} else {
				o.all, o.at = append(o.all, l), append(o.at, time.Now())
			}
			o.mu.Unlock()
			begun()
		}
	}()
	kit.Receive(t, first, "the first state")
	return o
}

// last returns the leader that was yielded last, and when.
func (o *observed) last() (l election.Leader, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.all) == 0 {
		return l, at
	}
	return o.all[len(o.all)-1], o.at[len(o.at)-1]
}

// values returns the values of the leaders that were yielded, with "-" for a vacancy.
func (o *observed) values() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var all []string
	for _, l := range o.all {
		if l.Vacant() {
			all = append(all, "-")
		} else {
			all = append(all, string(l.Value))
		}
	}
	return all
}

// closing returns a canceled context, so that Close does not wait for anything.
func closing(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// collect runs the garbage collector and lets cleanups run.
func collect() {
	for range 3 {
		runtime.GC()
	}
}

// message builds a message with these headers, as a user of the nats command could publish it.
func message(subject string, header ...string) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = []byte("by hand")
	for i := 0; i < len(header); i += 2 {
		m.Header.Set(header[i], header[i+1])
		m.Data = nil
	}
	return m
}
