package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/plain"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// bucketWait is how often a feed looks for a bucket that has been deleted.
const bucketWait = time.Second

// leaderWait is how often a feed checks that the bucket has a leader. Without a leader, a
// subscription is as silent as if nothing were happening in the bucket.
const leaderWait = 10 * time.Second

// Feed follows the locks of a bucket across outages and while the bucket does not exist. It
// calls Event and Absent on the goroutine that calls Run, and Disconnected on another
// goroutine, possibly at the same time.
type Feed struct {
	Globals *Globals
	Session *Session // already connected; the feed opens and closes its client
	Pattern string

	Event        func(admin.Event)
	Disconnected func()
	Absent       func(why error) // called if the bucket does not exist or does not respond
}

// Run follows the locks until ctx is done, and then returns nil. It returns an error if the
// first attempt fails, or later if it would be pointless to keep waiting.
func (f *Feed) Run(ctx context.Context) error {
	status := f.Session.NC.StatusChanged(nats.RECONNECTING)
	defer f.Session.NC.RemoveStatusListener(status)
	var states sync.WaitGroup
	defer states.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var refused error // set before ctx is canceled
	states.Go(func() {
		for {
			select {
			case _, open := <-status:
				if !open {
					return
				}
				f.Disconnected()
			case err := <-f.Session.unnotified:
				refused = unnotified(f.Pattern, err)
				cancel()
				return
			case <-ctx.Done():
				return
			}
		}
	})
	for opened := false; ; {
		err := f.Session.Open(f.Globals, natslock.WithOwner(Operator()))
		if err == nil {
			if err = f.led(ctx); err == nil {
				opened = true
				err = f.listen(ctx)
			}
			_ = f.Session.Close(context.Background()) // it holds no locks
			f.Session.Client = nil
		}
		passing := opened && (errors.Is(err, kvstore.ErrNotFound) || errors.Is(err, kvstore.ErrRemade) || tool.CodeOf(err) == tool.ExitUnavailable)
		switch {
		case ctx.Err() != nil:
			states.Wait()
			return refused
		case f.Session.NC.IsClosed():
			return fmt.Errorf("the connection was closed: %w", plain.Join(f.Session.NC.LastError(), natslock.ErrUnavailable))
		case !passing:
			return err
		}
		f.Absent(err)
		select {
		case <-time.After(bucketWait):
		case <-ctx.Done():
			states.Wait()
			return refused
		}
	}
}

// listen passes events on until the watch ends or the bucket has no leader.
func (f *Feed) listen(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer end(nil)
	asking.Go(func() {
		for {
			select {
			case <-time.After(leaderWait):
			case <-ctx.Done():
				return
			}
			if err := f.led(ctx); err != nil {
				end(err)
			}
		}
	})
	for ev, err := range admin.New(f.Session.Client).Watch(ctx, f.Pattern) {
		if why := context.Cause(ctx); why != nil {
			return why
		}
		if err != nil {
			return err
		}
		f.Event(ev)
	}
	return context.Cause(ctx)
}

// led returns an error if the bucket has no leader. It ignores connection outages, which the
// watch notices itself.
func (f *Feed) led(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.Globals.Timeout)
	defer cancel()
	connection := tool.ConnectionOf(f.Session.NC)
	by := connection()
	err := f.Session.Led(ctx, f.Globals)
	if by == 0 || by != connection() || tool.CodeOf(err) != tool.ExitUnavailable {
		return nil
	}
	return err
}
