package history

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
)

// Recorder records a [History]. It is safe for concurrent use, but must be used either
// entirely inside one bubble or entirely outside any bubble.
type Recorder struct {
	began time.Time
	taps  []tap

	mu       sync.Mutex // never held across I/O
	h        History
	seq      int64
	open     map[*Held]struct{}    // locks not unlocked yet
	accepted map[string]acceptance // by resource
	known    map[string]*knowledge // by client; see [Recorder.Over]
}

// acceptance holds the largest tokens that a resource has seen.
type acceptance struct{ any, exclusive uint64 }

// NewRecorder starts a history.
func NewRecorder() *Recorder {
	r := &Recorder{began: time.Now(), open: map[*Held]struct{}{}, accepted: map[string]acceptance{}, known: map[string]*knowledge{}}
	r.h.Began, r.h.Faults = r.began, map[string]int{}
	r.h.Turn = time.Millisecond + time.Second // a busy machine may record a grant late
	return r
}

// Lossy declares that notifications may be lost on their way to the tap.
func (r *Recorder) Lossy() { r.h.Lossy = true }

// TTL sets the longest TTL of any renewed lease.
func (r *Recorder) TTL(d time.Duration) { r.h.TTL = d }

// Turn configures a history in fake time: how long a client's turn is, how long a client may be
// unaware of a foreign place, and whether nothing fails (calm).
func (r *Recorder) Turn(turn, notice time.Duration, calm bool) {
	r.h.Turn, r.h.Notice, r.h.Calm = turn, notice, calm
}

// Repeat sets the command that reproduces such a history. The result may differ because
// goroutines may be scheduled in a different order.
func (r *Recorder) Repeat(command string) { r.h.Repeat = command }

func (r *Recorder) at(t time.Time) time.Duration { return t.Sub(r.began) }

// now returns the next moment. The caller holds mu.
func (r *Recorder) now() Moment {
	r.seq++
	return Moment{At: time.Since(r.began), Seq: r.seq}
}

// begin records an operation's call.
func (r *Recorder) begin(op Op) *Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	op.Call = r.now()
	r.h.Ops = append(r.h.Ops, &op)
	return &op
}

// end records an operation's return.
func (r *Recorder) end(op *Op, out Outcome, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	op.Return, op.Outcome = r.now(), out
	if err != nil {
		op.Err = err.Error()
	}
}

// opKey is the context key for an acquire's operation.
type opKey struct{}

// pending is an acquire in progress, and the resulting lock.
type pending struct {
	op   *Op
	held *Held
}

// Option lets the recorder see tickets and renewals. Every wrapped client needs it. It replaces
// any other observer.
func (r *Recorder) Option() natslock.Option {
	return admin.WithObserver(func(ctx context.Context, ev admin.Event) {
		p, ok := ctx.Value(opKey{}).(*pending)
		if !ok {
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		switch ev.Type {
		case admin.EventQueued:
			p.op.Tickets = append(p.op.Tickets, Ticket{ID: ev.ID, Ticket: ev.Token, At: time.Since(r.began)})
		case admin.EventRenewed:
			if p.held != nil {
				r.confirmed(p.held)
			}
		}
	})
}

// confirmed records the end of the validity as the holder sees it. The caller holds mu.
func (r *Recorder) confirmed(h *Held) {
	c := Confirmation{At: time.Since(r.began), Until: r.at(kit.ValidUntil(h.lock))}
	if c.Until > c.At {
		h.hold.Confirmed = append(h.hold.Confirmed, c)
	}
}

// Client is a client whose operations are recorded.
type Client struct {
	// Name distinguishes clients.
	Name string
	rec  *Recorder
	c    *natslock.Client
	rw   *rwlock.RWLock
}

// Client wraps a client, which must have been created with [Recorder.Option].
func (r *Recorder) Client(name string, c *natslock.Client) *Client {
	return &Client{Name: name, rec: r, c: c, rw: rwlock.New(c)}
}

// Want describes what to acquire.
type Want struct {
	Kind admin.Kind
	Name string
	Mode admin.Mode
	Try  bool // do not wait
	// Permits is the semaphore's number of permits.
	Permits int
	// Cohort names the options that decide which of the client's goroutines may share a lease,
	// as in [Op].
	Cohort string
}

// Acquire takes a lock with the method that a user would call.
func (c *Client) Acquire(ctx context.Context, w Want, opts ...natslock.LockOption) (*Held, error) {
	op := Op{Client: c.Name, Lock: gateKey(w.Kind, w.Name), Shared: w.Mode == admin.Shared, Permits: w.Permits, Cohort: w.Cohort, Do: Lock, Bounded: ctx.Done() != nil}
	if w.Try {
		op.Do = Try
	}
	p := &pending{op: c.rec.begin(op)}
	ctx = context.WithValue(ctx, opKey{}, p)
	take := c.rw.RLock
	switch {
	case w.Kind == admin.KindSemaphore:
		take = c.permit(w)
	case w.Kind == admin.KindMutex && w.Try:
		take = c.c.TryLock
	case w.Kind == admin.KindMutex:
		take = c.c.Lock
	case w.Mode == admin.Exclusive && w.Try:
		take = c.rw.TryLock
	case w.Mode == admin.Exclusive:
		take = c.rw.Lock
	case w.Try:
		take = c.rw.TryRLock
	}
	l, err := take(ctx, w.Name, opts...)
	if err != nil {
		if locked, ok := errors.AsType[*natslock.LockedError](err); ok && locked.Holder != nil {
			c.rec.mu.Lock()
			p.op.Token = locked.Holder.Token
			c.rec.mu.Unlock()
		}
		c.rec.end(p.op, outcomeOf(err), err)
		return nil, err
	}
	return c.rec.granted(c, p, l), nil
}

// permit returns the function that acquires a permit.
func (c *Client) permit(w Want) func(context.Context, string, ...natslock.LockOption) (*natslock.Lock, error) {
	s := semaphore.New(c.c, w.Permits)
	if w.Try {
		return s.TryAcquire
	}
	return s.Acquire
}

// outcomeOf maps the library's errors to outcomes.
func outcomeOf(err error) Outcome {
	for _, m := range []struct {
		err error
		out Outcome
	}{
		{natslock.ErrLocked, Refused}, {natslock.ErrTimeout, GaveUp}, {natslock.ErrBroken, Broken}, {natslock.ErrLost, Lost},
		{natslock.ErrReleased, Lost}, {natslock.ErrEnded, Lost},
	} {
		if errors.Is(err, m.err) {
			return m.out
		}
	}
	if err != nil {
		return Unknown
	}
	return OK
}

func (r *Recorder) granted(c *Client, p *pending, l *natslock.Lock) *Held {
	h := &Held{rec: r, c: c, lock: l}
	r.mu.Lock()
	if n, ok := semaphore.Slot(l); ok {
		p.op.Lock = slotKey(p.op.Lock, n)
	}
	p.op.Return, p.op.Outcome, p.op.Token, p.op.ID = r.now(), OK, l.Token(), l.ID()
	h.hold = &Hold{
		Client: p.op.Client, Lock: p.op.Lock, Shared: p.op.Shared, ID: l.ID(), Token: l.Token(),
		Cohort: p.op.Cohort, Asked: p.op.Call, From: p.op.Return,
	}
	if k := r.known[p.op.Client]; k != nil && !p.op.Shared {
		h.hold.Unknown = !k.of(p.op.Lock, h.hold.Token)
	}
	p.held = h
	r.h.Holds = append(r.h.Holds, h.hold)
	r.open[h] = struct{}{}
	r.confirmed(h)
	r.mu.Unlock()
	context.AfterFunc(l.Context(), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		cause := context.Cause(l.Context())
		h.hold.Ended, h.hold.Cause, h.hold.Left = r.now(), cause.Error(), errors.Is(cause, natslock.ErrReleased)
	})
	return h
}

// Granted records the grant of a lock that was not acquired through the recorder. It must be
// called right after the acquire returns.
func (r *Recorder) Granted(kind admin.Kind, mode admin.Mode, l *natslock.Lock) {
	op := r.begin(Op{Lock: gateKey(kind, l.Name()), Shared: mode == admin.Shared, Do: Lock, Bounded: true})
	r.granted(nil, &pending{op: op}, l)
}

// Break breaks a holder that the caller has read.
func (c *Client) Break(ctx context.Context, kind admin.Kind, name string, h admin.Holder, now bool) error {
	op := Op{Client: c.Name, Lock: gateKey(kind, name), Do: Break, Token: h.Token, ID: h.ID}
	if kind == admin.KindSemaphore {
		op.Lock = slotKey(op.Lock, h.Slot)
	}
	if now {
		op.Do = BreakNow
	}
	o := c.rec.begin(op)
	err := admin.New(c.c).Break(ctx, admin.BreakRequest{Kind: kind, Name: name, ID: h.ID, Reason: "recorded", Immediately: now})
	c.rec.end(o, outcomeOf(err), err)
	return err
}

// ByHand runs do, and records that it deleted the record under key by hand. do returns the
// tombstone's revision.
func (r *Recorder) ByHand(key string, do func() (uint64, error)) error {
	lock, _ := lockOf(key)
	op := r.begin(Op{Client: "by hand", Lock: lock, Do: Delete, Key: key})
	revision, err := do()
	r.mu.Lock()
	op.Revision = revision
	r.mu.Unlock()
	r.end(op, outcomeOf(err), err)
	return err
}

// Remade runs do, and records that it deleted and re-created the bucket. do returns the new
// bucket's first sequence.
func (r *Recorder) Remade(do func() (first uint64, err error)) error {
	op := r.begin(Op{Client: "by hand", Do: Remake})
	first, err := do()
	r.mu.Lock()
	op.Revision = first
	r.h.Disturbances = append(r.h.Disturbances, Disturbance{What: "remade", From: op.Call.At, Until: time.Since(r.began)})
	r.mu.Unlock()
	r.end(op, outcomeOf(err), err)
	return err
}

// Fault records that a fault is injected into a client now.
func (r *Recorder) Fault(client, what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Since(r.began)
	r.h.Faults[what]++
	r.h.Disturbances = append(r.h.Disturbances, Disturbance{Client: client, What: what, From: now, Until: now})
}

// Outage records that a client is cut off until the returned function is called.
func (r *Recorder) Outage(client, what string) (over func()) {
	from := time.Since(r.began)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.h.Faults[what]++
		r.h.Disturbances = append(r.h.Disturbances, Disturbance{Client: client, What: what, From: from, Until: time.Since(r.began)})
	}
}

// Count adds to the number of faults injected by other means.
func (r *Recorder) Count(what string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Faults[what] += n
}

// Left records things that should have been removed by the end.
func (r *Recorder) Left(what ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Left = append(r.h.Left, what...)
}

// History returns the history so far. A holder that still has a lock is assumed to believe in
// it until its validity, as currently known, ends.
func (r *Recorder) History() *History {
	stream, tapped := r.stream()
	r.mu.Lock()
	defer r.mu.Unlock()
	for h := range r.open {
		h.hold.Until = r.at(kit.ValidUntil(h.lock))
	}
	h := r.h
	h.Ended = time.Since(r.began)
	h.Ops = copies(r.h.Ops)
	h.Holds = copies(r.h.Holds)
	h.Disturbances = slices.Clone(r.h.Disturbances)
	h.Faults = maps.Clone(r.h.Faults)
	h.Left = slices.Clone(r.h.Left)
	h.Stream, h.Tapped = stream, tapped
	for _, op := range h.Ops {
		if op.Do == Remake && op.Revision != 0 {
			h.Stream = append(h.Stream, Entry{Remade: true, Revision: op.Revision, At: op.Return.At})
		}
	}
	slices.SortStableFunc(h.Stream, byRevision)
	return &h
}

// copies returns copies that operations in progress cannot change.
func copies[T any](list []*T) []*T {
	out := make([]*T, len(list))
	for i, p := range list {
		v := *p
		out[i] = &v
	}
	return out
}

func (w Want) String() string {
	return fmt.Sprintf("%s %s (%v)", w.Kind, w.Name, w.Mode)
}
