package simulation_test

import (
	"context"
	"sync"
	"time"

	"github.com/natslock/locks/internal/kvstore"
)

// wire is a store at a distance, which delays requests as well as replies and
// notifications by lag. Each direction keeps its order, as a connection does.
type wire struct {
	kvstore.KV
	lag      time.Duration
	up, down pipe
}

// pipe delivers in order, after a delay.
type pipe struct {
	mu    sync.Mutex
	queue []func()
	run   sync.Mutex // one at a time
}

func (p *pipe) after(d time.Duration, fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, fn)
	time.AfterFunc(d, func() {
		p.run.Lock()
		defer p.run.Unlock()
		p.mu.Lock()
		next := p.queue[0]
		p.queue = p.queue[1:]
		p.mu.Unlock()
		next()
	})
}

func (w *wire) Send(wr kvstore.Write, done func(kvstore.Answer)) (forget func(), err error) {
	wr.Value = append([]byte(nil), wr.Value...)
	var mu sync.Mutex
	var forgotten bool
	var inner func()
	w.up.after(w.lag, func() {
		stop, err := w.KV.Send(wr, func(a kvstore.Answer) {
			w.down.after(w.lag, func() {
				mu.Lock()
				over := forgotten
				mu.Unlock()
				if !over {
					done(a)
				}
			})
		})
		mu.Lock()
		defer mu.Unlock()
		if inner = stop; err == nil && forgotten {
			stop()
		}
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		if forgotten = true; inner != nil {
			inner()
		}
	}, nil
}

func (w *wire) Get(ctx context.Context, key string, min uint64) (rec kvstore.Record, err error) {
	w.ask(func() { rec, err = w.KV.Get(ctx, key, min) })
	return rec, err
}

func (w *wire) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (l kvstore.Listing, err error) {
	w.ask(func() { l, err = w.KV.List(ctx, pattern, min, opts...) })
	return l, err
}

func (w *wire) State(ctx context.Context, pattern string) (st kvstore.State, err error) {
	w.ask(func() { st, err = w.KV.State(ctx, pattern) })
	return st, err
}

// ask makes a request. Its reply arrives after all earlier notifications.
func (w *wire) ask(request func()) {
	time.Sleep(w.lag)
	request()
	there := make(chan struct{})
	w.down.after(w.lag, func() { close(there) })
	<-there
}

func (w *wire) Watch(pattern string, deliver func(kvstore.Event)) (kvstore.Watch, error) {
	return w.KV.Watch(pattern, func(ev kvstore.Event) {
		w.down.after(w.lag, func() { deliver(ev) })
	})
}
