package locktest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/natslock/locks/natslock"
)

func (t *trial) held() {
	l := t.lock("held")
	none, err := t.locks.TryLock(t.Context(), "held")
	t.check(none == nil, "two callers hold the lock")
	t.matches("TryLock", err, natslock.ErrLocked)
	locked, ok := errors.AsType[*natslock.LockedError](err)
	t.check(ok && locked.Name == "held", "the error is not a LockedError for this lock: %v", err)
	t.matches("TryDo", t.locks.TryDo(t.Context(), "held", t.never), natslock.ErrLocked)
	t.release(l)
	t.free("held")
}

// taken is the result of an acquire.
type taken struct {
	l   *natslock.Lock
	err error
}

// locking acquires a lock on a new goroutine.
func (t *trial) locking(ctx context.Context, name string, opts ...natslock.LockOption) <-chan taken {
	ch := make(chan taken, 1)
	go func() {
		l, err := t.locks.Lock(ctx, name, opts...)
		ch <- taken{l, err}
	}()
	return ch
}

func (t *trial) waits() {
	l := t.lock("waits")
	ch := t.locking(t.Context(), "waits")
	t.awaitWaiting("waits", 1)
	select {
	case r := <-ch:
		t.Fatalf("Lock did not wait: %v, %v", r.l, r.err)
	default:
	}
	t.release(l)
	r := await(t, ch, "the lock")
	t.check(r.err == nil, "Lock: %v", r.err)
	t.check(r.l.Token() > l.Token(), "got token %d after token %d", r.l.Token(), l.Token())
	t.check(r.l.ID() != l.ID(), "two acquires got the same ID %q", l.ID())
	t.release(r.l)
}

func (t *trial) maxWait() {
	l := t.lock("maxwait")
	none, err := t.locks.Lock(t.Context(), "maxwait", natslock.MaxWait(20*time.Millisecond))
	t.check(none == nil, "two callers hold the lock")
	t.matches("Lock", err, natslock.ErrTimeout)
	t.check(!errors.Is(err, context.DeadlineExceeded), "the error matches context.DeadlineExceeded although the context has not ended: %v", err)
	timeout, ok := errors.AsType[*natslock.TimeoutError](err)
	t.check(ok && timeout.Name == "maxwait" && timeout.Waited >= 20*time.Millisecond, "the error is not a TimeoutError for this lock: %v", err)
	t.release(l)
	next, err := t.locks.Lock(t.Context(), "maxwait", natslock.MaxWait(patience))
	t.check(err == nil, "a waiter that gave up blocks others: %v", err)
	_, bounded := next.Context().Deadline()
	t.check(!bounded, "MaxWait bounds the hold")
	t.release(next)
}

func (t *trial) canceled() {
	l := t.lock("canceled")
	ctx, cancel := context.WithCancel(t.Context())
	ch := t.locking(ctx, "canceled")
	t.awaitWaiting("canceled", 1)
	cancel()
	r := await(t, ch, "the end of the wait")
	t.check(r.l == nil, "two callers hold the lock")
	t.matches("Lock", r.err, natslock.ErrTimeout, context.Canceled)
	t.release(l)
	t.release(t.lock("canceled"))
}

// waiting returns the number of waiting goroutines, and false if the Locker does not
// report it.
func (t *trial) waiting(name string) (int, bool) {
	switch x := t.locks.(type) {
	case interface{ Waiting(name string) int }:
		return x.Waiting(name), true
	case interface{ Stats() natslock.Stats }:
		return x.Stats().Waiting, true
	}
	return 0, false
}

// awaitWaiting waits until n goroutines are waiting, or for a moment if the Locker does
// not report their number.
func (t *trial) awaitWaiting(name string, n int) {
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		switch have, known := t.waiting(name); {
		case have >= n, !known && time.Since(begun) > 50*time.Millisecond:
			return
		case time.Since(begun) > patience:
			t.Fatalf("%d goroutines are waiting for lock %q, want %d", have, name, n)
		}
	}
}

func (t *trial) order() {
	if _, known := t.waiting("order"); !known {
		t.Skip("the Locker has neither Waiting nor Stats to show that a goroutine is waiting")
	}
	l := t.lock("order")
	const n = 5
	order := make(chan int, n)
	for i := range n {
		go func() {
			_ = t.locks.Do(t.Context(), "order", func(context.Context, *natslock.Lock) error {
				order <- i
				return nil
			})
		}()
		t.awaitWaiting("order", i+1)
	}
	t.release(l)
	for i := range n {
		got := await(t, order, "the next holder")
		t.check(got == i, "goroutine %d holds the lock, but goroutine %d asked first", got, i)
	}
	t.release(t.lock("order"))
}

func (t *trial) exclusion() {
	const goroutines, times = 8, 10
	inside, last := 0, uint64(0)
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range times {
				if err := t.locks.Do(t.Context(), "exclusion", func(_ context.Context, l *natslock.Lock) error {
					if inside++; inside != 1 { // needs no mutex, because the lock has to act as one
						t.Errorf("%d callers hold the lock", inside)
					}
					if l.Token() <= last {
						t.Errorf("got token %d after token %d", l.Token(), last)
					}
					last = l.Token()
					inside--
					return nil
				}); err != nil {
					t.Errorf("Do: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

// both tests that readers and writers of one lock exclude each other.
func both(reader, writer *trial) {
	a, b := reader.lock("both"), reader.lock("both")
	_, err := writer.locks.TryLock(writer.Context(), "both")
	writer.matches("TryLock alongside readers", err, natslock.ErrLocked)
	waits := writer.locking(writer.Context(), "both")
	for { // until the writer waits, because a waiting writer keeps later readers out
		l, err := reader.locks.TryLock(reader.Context(), "both")
		if err != nil {
			reader.matches("TryLock behind a writer", err, natslock.ErrLocked)
			break
		}
		reader.release(l)
	}
	later := reader.locking(reader.Context(), "both")
	reader.release(a)
	reader.release(b)
	w := await(writer, waits, "the writer's lock")
	writer.check(w.err == nil, "Lock of the writer: %v", w.err)
	writer.check(w.l.Token() > a.Token() && w.l.Token() > b.Token(), "the writer got token %d after readers' tokens %d and %d", w.l.Token(), a.Token(), b.Token())
	select {
	case <-later:
		reader.Fatalf("a reader holds the lock alongside the writer")
	default:
	}
	_, err = reader.locks.TryLock(reader.Context(), "both")
	reader.matches("TryLock alongside a writer", err, natslock.ErrLocked)
	writer.release(w.l)
	r := await(reader, later, "the reader's lock")
	reader.check(r.err == nil, "Lock of the reader: %v", r.err)
	reader.check(r.l.Token() > w.l.Token(), "the reader got token %d after the writer's token %d", r.l.Token(), w.l.Token())
	reader.release(r.l)
	writer.free("both")
}
