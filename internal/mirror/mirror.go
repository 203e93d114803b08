// Package mirror keeps a copy of a bucket's locks and knows whether the copy is complete. While the bucket's stream
// has no leader, lists and subscriptions are silent, and silence looks just like a bucket without locks. A mirror
// therefore polls the leader as well. It is live only while the leader replies, the bucket is fit, and the copy has
// missed nothing.
//
// lockctl and natslock-exporter show a mirror's locks.
package mirror

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/natslock/locks/internal/admin"
	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/natslock"
	locks "github.com/natslock/locks/natslock/admin"
)

const (
	// The mirror asks the leader every askEach while all is well, and every askSoon otherwise.
	askEach, askSoon = 10 * time.Second, time.Second
	// answerTime limits the wait for a reply. An election takes less time than that.
	answerTime = 4 * time.Second
	// again is the pause before another attempt to follow the bucket or list its locks.
	again = time.Second
	// listTime limits how long listing all the locks may take.
	listTime = time.Minute
	// The mirror lists the locks every listEach even if it has missed no event, because notifications can be lost. If
	// listing takes a long time, the pause grows to listShare times its duration, but not beyond listRarely.
	listEach, listShare, listRarely = 10 * time.Second, 100, 5 * time.Minute
)

// Config configures a mirror.
type Config struct {
	Bucket, Pattern string
	// Open opens a client on the bucket. The mirror closes the client.
	Open func(context.Context) (*natslock.Client, error)
	// Ask asks the bucket's leader about the stream.
	Ask func(context.Context) (*kvstore.Info, error)
	// Connection returns the number of the current connection, counting from 1, or 0 if the connection is down.
	Connection func() uint64

	// The following functions may be nil. Event is called for each event, after the copy has changed. Turned is
	// called for each new state. Changed is called for each lock that has changed, and must neither block nor call
	// the mirror.
	Event   func(locks.Event)
	Turned  func(State)
	Changed func(ID)
}

// Mirror is a copy of a bucket's locks. Its methods are safe for concurrent use.
type Mirror struct {
	cfg   Config
	doubt chan struct{} // triggers an immediate request to the leader
	read  chan struct{} // triggers an immediate list of the locks
	turn  chan struct{} // wakes tell

	mu       sync.Mutex
	client   *natslock.Client // nil between attempts to follow the bucket
	records  records
	evidence evidence
	highest  uint64 // highest bucket revision seen
	// gaps counts the times when the copy may have begun to lack changes. Only a list that starts after the last gap
	// makes the copy complete again.
	gaps  int
	ahead time.Duration
	state State
	turns []State // states not yet passed to Turned
}

// New returns an empty mirror, which Run fills.
func New(cfg Config) *Mirror {
	if cfg.Event == nil {
		cfg.Event = func(locks.Event) {}
	}
	if cfg.Changed == nil {
		cfg.Changed = func(ID) {}
	}
	if cfg.Turned == nil {
		cfg.Turned = func(State) {}
	}
	return &Mirror{
		cfg: cfg, doubt: make(chan struct{}, 1), read: make(chan struct{}, 1), turn: make(chan struct{}, 1), records: newRecords(cfg.Changed),
		evidence: evidence{missed: ErrReading}, state: State{Since: time.Now(), Why: ErrReading},
	}
}

// Run follows the bucket across outages until ctx ends, and then returns nil. It returns an error if the first
// attempt fails, or if waiting cannot help because the user is not allowed to read the locks or the connection was
// closed for good.
func (m *Mirror) Run(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() { m.ask(ctx) })
	beside.Go(func() { m.tell(ctx) })
	defer beside.Wait()
	defer end()
	for begun := false; ; {
		err := m.follow(ctx, &begun)
		switch {
		case ctx.Err() != nil:
			return nil
		case !begun || isFinal(err):
			return err
		}
		m.Doubt(err)
		if pause(ctx, again) != nil {
			return nil
		}
	}
}

func isFinal(err error) bool {
	return errors.Is(err, natslock.ErrPermission) || errors.Is(err, kvstore.ErrConnectionClosed)
}

var (
	inside = bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]()
	shown  = bridge.Admin[*natslock.Client, *locks.Holder, locks.Info, locks.Event]()
)

// follow opens the bucket and applies its events until an error occurs. It sets begun once the locks have been
// listed.
func (m *Mirror) follow(ctx context.Context, begun *bool) error {
	client, err := m.cfg.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close(context.WithoutCancel(ctx)) }() // the client holds no locks
	m.use(client)
	defer m.use(nil)
	ctx, end := context.WithCancelCause(ctx)
	var listing sync.WaitGroup
	listing.Go(func() { end(m.list(ctx, client, begun)) })
	defer listing.Wait()
	defer end(nil)
	for step, err := range shown.Follow(ctx, client, m.cfg.Pattern) {
		if err != nil {
			return err
		}
		m.apply(step)
	}
	return context.Cause(ctx)
}

// apply applies a step of the watch. An EventWatching means that the copy may lack changes made before it.
func (m *Mirror) apply(s admin.Step) {
	m.mu.Lock()
	if s.Event.Record.Key != "" {
		m.highest = max(m.highest, s.Event.Record.Revision)
		// An expiry goes by this machine's clock and may be wrong, because a mirror that is missing changes may also
		// be missing renewals.
		if s.Event.Kind == kvstore.Expired && m.state.Condition != Live {
			m.mu.Unlock()
			return
		}
		m.records.apply(s.Event)
	}
	m.mu.Unlock()
	for _, c := range s.Changes {
		if c.Type == admin.EventWatching {
			m.mu.Lock()
			m.ahead = time.Until(c.Time)
			m.missed(ErrReading)
			m.mu.Unlock()
			wake(m.read)
			wake(m.doubt)
		}
		m.cfg.Event(shown.EventOf(c))
	}
}

// list lists the locks whenever a list is due. It returns an error if the first list fails, or if waiting cannot
// help.
func (m *Mirror) list(ctx context.Context, client *natslock.Client, begun *bool) error {
	in, err := inside.Admin(ctx, client)
	if err != nil {
		return err
	}
	each := listEach
	for {
		select {
		case <-m.read:
		case <-time.After(each):
		case <-ctx.Done():
			return nil
		}
		start := time.Now()
		switch err := m.listAll(ctx, in); {
		case err == nil:
			*begun = true
			each = min(max(listShare*time.Since(start), listEach), listRarely)
		case ctx.Err() == nil && *begun && !isFinal(err):
			m.Doubt(err)
			each = again
		default:
			return err
		}
	}
}

func (m *Mirror) listAll(ctx context.Context, in *admin.Admin) error {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	m.mu.Lock()
	gaps := m.gaps
	m.records.listing()
	m.mu.Unlock()
	var all []record.Entry
	err := in.List(ctx, m.cfg.Pattern, func(v admin.View) bool {
		if !v.Holder.Zero() {
			all = append(all, v.Holder)
		}
		all = append(append(append(all, v.Readers...), v.Slots...), v.Queue...)
		return true
	})
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.records.listed(all)
	if gaps == m.gaps {
		m.evidence.missed = nil
	}
	m.judge()
	return nil
}

// ask asks the leader about the bucket every 10 s, or every second while the mirror is not live, and immediately
// after each doubt.
func (m *Mirror) ask(ctx context.Context) {
	for ctx.Err() == nil {
		m.mu.Lock()
		highest := m.highest
		m.mu.Unlock()
		by := m.cfg.Connection()
		asking, cancel := context.WithTimeout(ctx, answerTime)
		info, err := m.cfg.Ask(asking)
		cancel()
		if ctx.Err() != nil {
			return
		}
		wait := askSoon
		if m.answered(answer{info: info, err: err, highest: highest}, by) {
			wait = askEach
		}
		select {
		case <-m.doubt:
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// answered records the leader's reply to a request that was sent on connection number by, and reports whether all is
// well. If there was no leader, changes may have been missed, because the server that this client is connected to may
// have been cut off from the others.
func (m *Mirror) answered(a answer, by uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.err != nil && (by == 0 || by != m.cfg.Connection()) { // the request was lost with the connection
		return false
	}
	if a.info != nil {
		m.ahead = time.Until(a.info.TimeStamp)
		m.highest = max(m.highest, a.info.State.LastSeq)
		if a.info.State.LastSeq < a.highest {
			a.behind = m.evidence.answer.behind + 1
		}
	}
	if errors.Is(a.err, kvstore.ErrNotFound) {
		m.records.clear()
	}
	m.evidence.answer = a
	before := m.state.Condition
	m.judge()
	switch after := m.state.Condition; {
	case after == NoLeader && before != NoLeader:
		m.missed(m.state.Why)
	case after != NoLeader && before == NoLeader:
		wake(m.read)
	}
	return m.state.Condition == Live && a.behind == 0
}

// missed records that the copy may lack changes from now on, and why. The caller must hold mu.
func (m *Mirror) missed(why error) {
	if m.evidence.missed == nil || errors.Is(m.evidence.missed, ErrReading) {
		m.evidence.missed = why
	}
	m.gaps++
	m.judge()
}

// Doubt records that the connection or the watch has ended, and why. The mirror then asks the leader immediately.
func (m *Mirror) Doubt(why error) {
	m.mu.Lock()
	m.evidence.missed = nil
	m.missed(why)
	m.mu.Unlock()
	wake(m.doubt)
}

// judge updates the state from the evidence. The caller must hold mu.
func (m *Mirror) judge() {
	m.evidence.connected = m.cfg.Connection() != 0
	condition, why := m.evidence.judge(m.cfg.Bucket)
	now := State{Condition: condition, Since: m.state.Since, Why: why, Replicas: m.state.Replicas}
	if condition != m.state.Condition {
		now.Since = time.Now()
	}
	if info := m.evidence.answer.info; info != nil {
		now.Replicas = info.Config.Replicas
		_, now.Current = replicas(info)
	}
	turned := condition != m.state.Condition || now.Current != m.state.Current || text(why) != text(m.state.Why)
	m.state = now
	if turned {
		m.turns = append(m.turns, now)
		wake(m.turn)
	}
}

// tell calls Turned for each state, in order.
func (m *Mirror) tell(ctx context.Context) {
	for {
		select {
		case <-m.turn:
		case <-ctx.Done():
			return
		}
		m.mu.Lock()
		turns := m.turns
		m.turns = nil
		m.mu.Unlock()
		for _, s := range turns {
			m.cfg.Turned(s)
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// State returns the state of the mirror.
func (m *Mirror) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.judge()
	return m.state
}

// Ahead returns how far the server's clock is ahead of this machine's.
func (m *Mirror) Ahead() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ahead
}

// Lock returns the lock with the given ID. The caller must not modify the result.
func (m *Mirror) Lock(id ID) locks.Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records.info(id)
}

// Counts returns how many holders and how many queued waiters a lock has.
func (m *Mirror) Counts(id ID) (held, queued int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records.counts(id)
}

// Below returns the locks whose names begin with prefix, in no particular order. The caller must not modify the
// results.
func (m *Mirror) Below(prefix string) []locks.Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records.infos(func(id ID) bool { return strings.HasPrefix(id.Name, prefix) })
}

// Client returns the mirror's client, or nil between attempts to follow the bucket.
func (m *Mirror) Client() *natslock.Client {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.client
}

func (m *Mirror) use(client *natslock.Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.client = client
}

// Look asks the leader once whether clients can get locks in the bucket. It returns nil if they can, and otherwise
// the error that a mirror would report in its State.
func Look(ctx context.Context, bucket string, ask func(context.Context) (*kvstore.Info, error)) error {
	info, err := ask(ctx)
	_, why := evidence{connected: true, answer: answer{info: info, err: err}}.judge(bucket)
	return why
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
