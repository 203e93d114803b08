package bucket

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/natslock/locks/internal/kvstore"
)

var errGone = fmt.Errorf("%w: %w", ErrUnavailable, kvstore.ErrConnectionClosed)

// connection is the state of the connection as last reported by the store. Asking the connection itself would lock its
// mutex, which a stuck write may be holding.
type connection struct {
	away atomic.Bool

	mu      sync.Mutex
	listens sync.Once
	notify  func(kvstore.ConnState)
	up      chan struct{} // closed when the connection comes back
	gone    chan struct{} // closed when the connection is closed for good
}

// Notify sets the function to call when the connection changes. notify is called only after [Bucket.Listen] and must
// not block.
func (b *Bucket) Notify(notify func(kvstore.ConnState)) {
	b.conn.mu.Lock()
	defer b.conn.mu.Unlock()
	b.conn.notify = notify
}

// Listen starts following the connection. Further calls do nothing.
func (b *Bucket) Listen() {
	b.conn.listens.Do(func() { b.KV.OnConnection(b.changed) })
}

// changed runs on one of the store's goroutines and must not block.
func (b *Bucket) changed(s kvstore.ConnState) {
	c := &b.conn
	if s == kvstore.Doubtful {
		c.mu.Lock()
		notify := c.notify
		c.mu.Unlock()
		if notify != nil {
			notify(s)
		}
		return
	}
	c.away.Store(s != kvstore.Connected)
	c.mu.Lock()
	if s == kvstore.Connected {
		close(c.up)
		c.up = make(chan struct{})
	}
	if s == kvstore.Closed && !b.Gone() {
		close(c.gone)
	}
	notify := c.notify
	c.mu.Unlock()
	if s == kvstore.Closed {
		b.quit(errGone)
	}
	if notify != nil {
		notify(s)
	}
}

// Away reports whether the connection is down, as far as the client knows.
func (b *Bucket) Away() bool { return b.conn.away.Load() }

// Gone reports whether the connection was closed for good, as far as the client knows. If so, no write will ever be
// answered.
func (b *Bucket) Gone() bool {
	select {
	case <-b.conn.gone:
		return true
	default:
		return false
	}
}

// Online returns a channel that is closed the next time the connection comes back. Call it before sending a request,
// because the connection may come back between the request's failure and the pause that follows.
func (b *Bucket) Online() <-chan struct{} {
	b.conn.mu.Lock()
	defer b.conn.mu.Unlock()
	return b.conn.up
}

// Sleep waits until d has passed or the connection comes back. If ctx ends first, it returns ctx's cause. If the
// connection is closed for good, it returns an error. up is the channel that [Bucket.Online] returned before the
// request to be retried was sent.
func (b *Bucket) Sleep(ctx context.Context, d time.Duration, up <-chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-up:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-b.conn.gone:
		return errGone
	}
}
