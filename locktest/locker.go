package locktest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"sync"
	"time"

	"github.com/natslock/locks/internal/bridge"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// inside provides functions of package natslock that only this module may use.
var inside = bridge.Natslock[*natslock.Client, *natslock.Lock, natslock.Option, natslock.LockOption, *natslock.Holder]()

// Locker is a natslock.Locker that keeps its locks in memory. Create it with [New]. It is safe
// for concurrent use.
type Locker struct {
	memory *kvstore.Memory
	raw    kvstore.KV       // without faults
	client *natslock.Client // used by the Locker's own methods
	other  *natslock.Client // without faults; acts as the other holder and as the operator

	outages sync.Mutex // held while an outage begins or ends; locked before mu
	failure error      // what all clients' requests fail with, or nil
	cut     map[*natslock.Client]bool

	mu      sync.Mutex
	clients []*natslock.Client // all clients, including client and other
	stores  map[*natslock.Client]*faults.Store
	delays  map[string]time.Duration // by lock name
}

var _ natslock.Locker = (*Locker)(nil)

// New returns a Locker in which no lock is held. It takes the options of natslock.New, but
// ignores those for reaching or creating a bucket. New panics if natslock.New would reject an
// option.
func New(opts ...natslock.Option) *Locker {
	l := &Locker{
		memory: kvstore.NewMemory(kvstore.DefaultBucket), stores: make(map[*natslock.Client]*faults.Store),
		cut: make(map[*natslock.Client]bool), delays: make(map[string]time.Duration),
	}
	l.raw = l.memory.Open()
	l.client = l.NewClient(opts...)
	l.other = l.add(l.memory.Open(), []natslock.Option{natslock.WithOwner("locktest")})
	return l
}

// NewClient returns another client of the same locks, like one in another process. [Locker.Close]
// closes it. NewClient takes the options of [New], and panics for the same reasons.
func (l *Locker) NewClient(opts ...natslock.Option) *natslock.Client {
	s := faults.New(l.memory.Open(), 0)
	s.OnSend(l.fate)
	l.outages.Lock()
	defer l.outages.Unlock()
	s.Fail(l.failure)
	c := l.add(s, opts)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stores[c] = s
	return c
}

// fate delays writing a record if the name of the record's lock has a delay.
func (l *Locker) fate(_ int, w kvstore.Write) faults.Fate {
	key, _ := record.ParseKey(w.Key)
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := l.delays[key.Name]; d > 0 && !w.Delete {
		return faults.Delay(d)
	}
	return faults.Pass
}

// Disconnect cuts a client off until reconnect is called: its requests fail, and nothing reaches
// it. A client that is never reconnected behaves as if its process had died, so its locks and its
// waiters' places stay in the bucket until their TTLs end. Disconnect panics if
// [Locker.NewClient] did not create the client.
func (l *Locker) Disconnect(c *natslock.Client) (reconnect func()) {
	l.mu.Lock()
	s := l.stores[c]
	l.mu.Unlock()
	if s == nil {
		panic("locktest: Disconnect of a client that NewClient did not create")
	}
	l.outage(func() { l.cut[c] = true })
	return func() { l.outage(func() { delete(l.cut, c) }) }
}

var errNoContext = fmt.Errorf("%w: the context is nil", natslock.ErrInvalid)

// errCut is the error of all requests from a client that [Locker.Disconnect] has cut off.
var errCut = fmt.Errorf("%w: the client is disconnected", natslock.ErrUnavailable)

// outage changes which clients fail, and with which error.
func (l *Locker) outage(change func()) {
	l.outages.Lock()
	defer l.outages.Unlock()
	change()
	l.mu.Lock()
	stores := maps.Clone(l.stores)
	l.mu.Unlock()
	for c, s := range stores {
		if l.cut[c] {
			s.Fail(errCut)
		} else {
			s.Fail(l.failure)
		}
	}
}

func (l *Locker) add(kv kvstore.KV, opts []natslock.Option) *natslock.Client {
	c, err := inside.Open(kv, opts)
	if err != nil {
		panic(fmt.Sprintf("locktest: %v", err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients = append(l.clients, c)
	return c
}

// Client returns the client behind the Locker's own methods. Use it for package rwlock, for other
// code that needs a client, and for methods that a Locker does not have.
func (l *Locker) Client() *natslock.Client { return l.client }

// Close closes all clients without waiting for locks that are still held. The contexts of those
// locks end with natslock.ErrClosed, and waiters get that error.
func (l *Locker) Close() {
	l.mu.Lock()
	clear(l.delays)
	l.mu.Unlock()
	l.Fail(nil)
	now, cancel := context.WithCancel(context.Background())
	cancel()
	for _, c := range l.all() {
		_ = c.Close(now) // the error only names locks that are still held
	}
	l.raw.Close()
}

func (l *Locker) all() []*natslock.Client {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clients[:len(l.clients):len(l.clients)]
}

// Lock is [natslock.Client.Lock].
func (l *Locker) Lock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return l.client.Lock(ctx, name, opts...)
}

// TryLock is [natslock.Client.TryLock].
func (l *Locker) TryLock(ctx context.Context, name string, opts ...natslock.LockOption) (*natslock.Lock, error) {
	return l.client.TryLock(ctx, name, opts...)
}

// Do is [natslock.Client.Do].
func (l *Locker) Do(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return l.client.Do(ctx, name, fn, opts...)
}

// TryDo is [natslock.Client.TryDo].
func (l *Locker) TryDo(ctx context.Context, name string, fn func(ctx context.Context, l *natslock.Lock) error, opts ...natslock.LockOption) error {
	return l.client.TryDo(ctx, name, fn, opts...)
}

// Hold makes another client take the mutex called name. It panics if the lock is held or has a
// queue, or if the name is invalid. The first call of release unlocks the mutex, and further
// calls do nothing. If release is never called, the client holds the lock until Close.
// [Locker.Delay] and [Locker.Fail] do not affect that client.
func (l *Locker) Hold(name string) (release func()) {
	held, err := l.other.TryLock(context.Background(), name)
	if err != nil {
		panic(fmt.Sprintf("locktest: %v", err))
	}
	// Keep the handle until the lock ends. Otherwise a test that drops release would also drop
	// the other client's lock, which would no longer be renewed.
	context.AfterFunc(held.Context(), func() { runtime.KeepAlive(held) })
	return func() { _ = held.Unlock(context.Background()) } // an error means that the test has ended the lock
}

// Lose ends all locks held under the name, of all kinds and clients, including those that linger.
// Their records are deleted, as if by hand. By the time Lose returns, their contexts have ended
// with a cause that matches natslock.ErrLost, and others can take the lock. It returns false if
// there was no such lock.
func (l *Locker) Lose(name string) (held bool) {
	return l.change(name, func(entry record.Entry) {
		_, _ = l.write(kvstore.Write{Key: entry.Key, Expect: entry.Revision, Delete: true}) // refused if there is a newer record
	})
}

// Break ends all locks held under the name as an operator would, with admin.Admin.Break. By the
// time Break returns, their contexts have ended with a cause that matches natslock.ErrBroken. No
// one else gets the lock until the holders have unlocked or their TTL has ended. Break returns
// false if there was no such lock, and panics if the name or the reason is invalid.
func (l *Locker) Break(name, reason string) (held bool) {
	operator := admin.New(l.other)
	none := admin.BreakRequest{Kind: admin.KindMutex, Name: name, ID: "none", Reason: reason}
	if err := operator.Break(context.Background(), none); errors.Is(err, natslock.ErrInvalid) {
		panic(fmt.Sprintf("locktest: %v", err))
	}
	return l.change(name, func(entry record.Entry) {
		key, _ := record.ParseKey(entry.Key)
		_ = operator.Break(context.Background(), admin.BreakRequest{ // refused if the claim has ended
			Kind: admin.Kind(key.Kind()), Name: name, ID: entry.ClaimID(), Reason: reason,
		})
	})
}

// change calls end on the record of each of the lock's leases until that lease has no valid
// record, and then makes the clients check their leases against the records.
func (l *Locker) change(name string, end func(record.Entry)) (held bool) {
	// Find all leases first, because a waiter may be granted the lock before the last lease has
	// ended.
	var leases []func(func(key string) kvstore.Record)
	for _, c := range l.all() {
		leases = append(leases, inside.Judge(c, name)...)
	}
	for _, endBy := range leases {
		endBy(func(key string) kvstore.Record {
			held = true
			id := ""
			for {
				r, err := l.raw.Get(context.Background(), key, 0)
				if err != nil { // there is no record
					return kvstore.Record{}
				}
				entry := record.Of(r)
				if id == "" {
					id = entry.ID
				}
				if !entry.Live() || !entry.From(id) || entry.Status != record.StatusHeld {
					return r
				}
				end(entry)
			}
		})
	}
	return held
}

// write writes to the bucket without faults.
func (l *Locker) write(w kvstore.Write) (uint64, error) {
	answers := make(chan kvstore.Answer, 1)
	if _, err := l.raw.Send(w, func(a kvstore.Answer) { answers <- a }); err != nil {
		return 0, err
	}
	a := <-answers
	return a.Revision, a.Err
}

// Delay makes the bucket slow: from now on, it stores each record for the locks with this name
// only after d, and responds only then. Grants and renewals take d or a little longer, for all
// clients except the one behind [Locker.Hold]. A lock whose validity ends before a renewal is
// confirmed is lost. Releases are not delayed. A d that is not positive ends the delay, except
// for writes that are already under way.
func (l *Locker) Delay(name string, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delays[name] = d
}

// Fail makes all requests fail with err, as if there were no server, until it is called with nil.
// It affects all clients except the one behind [Locker.Hold]. With natslock.ErrUnavailable, the
// clients act as in an outage: a Lock waits, a TryLock gives up after at most 5 s, and held locks
// end with their validity. With any other error, an acquire fails immediately with an error that
// matches err.
func (l *Locker) Fail(err error) { l.outage(func() { l.failure = err }) }

// Inspect returns a lock's state, as admin.Admin.Inspect does: the holder, the readers and the
// queue. Faults do not affect it. It panics if the name is invalid.
func (l *Locker) Inspect(kind admin.Kind, name string) admin.Info {
	info, err := admin.New(l.other).Inspect(context.Background(), kind, name)
	if err != nil {
		panic(fmt.Sprintf("locktest: %v", err))
	}
	return info
}

// Waiting returns how many goroutines, in all clients, are waiting for the locks with this name.
func (l *Locker) Waiting(name string) (n int) {
	encoded, err := record.EncodeName(name)
	if err != nil {
		return 0 // no one can wait for an invalid name
	}
	for _, c := range l.all() {
		for _, kind := range []record.Kind{record.Mutex, record.RW, record.Semaphore} {
			n += inside.Waiting(c, record.KeysOf(kind, encoded))
		}
	}
	return n
}

// AwaitWaiting waits until at least n goroutines are waiting for the locks with this name, and
// returns nil. If ctx ends first, the error matches ctx's. For a nil ctx or an invalid name it
// matches natslock.ErrInvalid.
func (l *Locker) AwaitWaiting(ctx context.Context, name string, n int) error {
	if _, err := record.EncodeName(name); err != nil || ctx == nil {
		return fmt.Errorf("locktest: await %d goroutines waiting for lock %.64q: %w", n, name, cmp.Or(err, errNoContext))
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		have := l.Waiting(name)
		if have >= n {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("locktest: %d goroutines are waiting for lock %q, want %d: %w", have, name, n, plain.EndOf(ctx))
		}
	}
}
