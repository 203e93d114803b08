package main

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
)

const (
	// lookPause is the shortest time between two reads of the bucket.
	lookPause = 250 * time.Millisecond
	// lookShare is which part of the time may be spent reading everything, as
	// 1/n: a bucket that takes long to read is read less often.
	lookShare = 4
	// lookBackstop is the time after which everything is read without an event: events
	// are hints, and some are lost.
	lookBackstop = 10 * time.Second
	// lookTimes bounds the time of a read, as a multiple of the limit of one request:
	// a read is many requests.
	lookTimes = 10
	// lookSingly is how many locks are read one by one rather than all.
	lookSingly = 40
)

// lockID names a lock of a kind.
type lockID struct {
	name string
	kind natslock.Kind
}

func idOf(info natslock.Info) lockID { return lockID{info.Name, info.Kind} }

// picture is the present state of the locks. Events name the locks to read again. The
// picture shows records that were read, and the ends of leases from renewals.
type picture struct {
	f    *feed
	wake chan struct{}

	mu       sync.Mutex
	locks    map[lockID]natslock.Info // values are never changed in place
	dirty    map[lockID]bool
	all      bool      // everything is to be read
	listing  bool      // that is under way
	nextList time.Time // not before
	version  int       // of locks
	listed   bool      // there was a list
	rates    rates
	state    string // why this may be out of date; "": it is not
	since    time.Time
	failure  string // of the last read
}

// rates are counts of what has happened.
type rates struct{ grants, handovers int }

func newPicture() *picture {
	return &picture{
		wake: make(chan struct{}, 1), locks: make(map[lockID]natslock.Info),
		dirty: make(map[lockID]bool),
	}
}

func (p *picture) event(ev natslock.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := lockID{ev.Name, ev.Kind}
	p.rates.grants += int(ev.Grants)
	queued := ev.Waited > 0
	if ev.Type != natslock.EventGranted { // inside a client: nearly all on an idle lock, if it lingers
		queued = ev.Holder == nil || !ev.Holder.Lingers
	}
	if queued {
		p.rates.handovers += int(ev.Grants)
	}
	switch ev.Type {
	case natslock.EventWatching:
		p.all, p.state = true, ""
	case natslock.EventRenewed:
		// One that is not known is in the list that is on its way.
		if p.renewLocked(id, ev) || p.all || p.listing {
			return
		}
		p.dirty[id] = true
	default:
		p.dirty[id] = true
	}
	p.poke()
}

// renewLocked moves the end of a lease. False when it is not one that is known.
func (p *picture) renewLocked(id lockID, ev natslock.Event) bool {
	info, found := p.locks[id]
	if !found || ev.Holder == nil {
		return false
	}
	same := func(h natslock.Holder) bool { return h.ID == ev.Holder.ID }
	all := &info.Readers
	if id.kind == natslock.KindSemaphore {
		all = &info.Permits
	}
	switch i := slices.IndexFunc(*all, same); {
	case info.Holder != nil && same(*info.Holder):
		if info.Holder.Revision < ev.Holder.Revision {
			info.Holder = ev.Holder
		}
	case i >= 0:
		if (*all)[i].Revision < ev.Holder.Revision {
			*all = slices.Clone(*all)
			(*all)[i] = *ev.Holder
		}
	default:
		return false
	}
	p.locks[id] = info
	p.version++
	return true
}

func (p *picture) disconnected() { p.outOfDate("disconnected") }

func (p *picture) absent(why error) {
	if errors.Is(why, kvstore.ErrNotFound) {
		p.outOfDate("no bucket")
		p.mu.Lock()
		defer p.mu.Unlock()
		clear(p.locks) // they are gone with it
		p.version++
		return
	}
	p.outOfDate("no answer")
}

func (p *picture) outOfDate(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != why {
		p.state, p.since = why, time.Now()
	}
}

func (p *picture) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run reads the locks that have changed until ctx ends.
func (p *picture) run(ctx context.Context) {
	backstop := time.NewTicker(lookBackstop)
	defer backstop.Stop()
	for ctx.Err() == nil {
		select {
		case <-p.wake:
		case <-backstop.C:
			p.mu.Lock()
			p.all = true
			p.mu.Unlock()
		case <-ctx.Done():
			return
		}
		p.look()
		select {
		case <-time.After(lookPause):
		case <-ctx.Done():
		}
	}
}

// due takes the locks to read now: all, or some. Others stay for later.
func (p *picture) due() (some map[lockID]bool, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	some, wait := p.dirty, time.Until(p.nextList)
	switch {
	case p.state != "": // nobody to ask; the next mark asks for all
		return nil, false
	case !p.all && len(some) <= lookSingly:
		p.dirty = make(map[lockID]bool)
		return some, false
	case wait <= 0:
		p.dirty, p.all, p.listing = make(map[lockID]bool), false, true
		return nil, true
	}
	time.AfterFunc(wait, p.poke)
	some = make(map[lockID]bool)
	for id := range p.dirty {
		if len(some) < lookSingly {
			some[id] = true
			delete(p.dirty, id)
		}
	}
	return some, false
}

// look reads the locks that are due. It reads a lock that failed again the next time.
func (p *picture) look() {
	dirty, all := p.due()
	if !all && len(dirty) == 0 {
		return
	}
	begun := time.Now()
	found := make(map[lockID]natslock.Info)
	err := p.f.with(lookTimes*p.f.g.Timeout, func(ctx context.Context, c *natslock.Client) error {
		if all {
			for info, err := range c.List(ctx, p.f.pattern) {
				if err != nil {
					return err
				}
				inOrder(info.Readers)
				found[idOf(info)] = info
			}
			return nil
		}
		for id := range dirty {
			info, err := c.Inspect(ctx, id.kind, id.name)
			if err != nil {
				return err
			}
			inOrder(info.Readers)
			found[id] = info
		}
		return nil
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failure, p.listing = "", false
	if all {
		p.nextList = time.Now().Add((lookShare - 1) * time.Since(begun))
	}
	switch {
	case errors.Is(err, errNoBucket):
		return
	case err != nil:
		p.failure, p.all = err.Error(), true
		time.AfterFunc(bucketWait, p.poke)
		return
	case all:
		p.listed = true
		p.locks = found
	default:
		for id, info := range found {
			if isFree(info) {
				delete(p.locks, id)
			} else {
				p.locks[id] = info
			}
		}
	}
	p.version++
}

// shot is the picture at one moment.
type shot struct {
	version int
	locks   []natslock.Info // by name
	held    int
	waiting int
	longest time.Time // when the first of the waiters began to wait; zero: nobody waits
	both    map[string]bool
}

// changed returns a shot if the picture is not the one of that version.
func (p *picture) changed(version int) (shot, bool) {
	p.mu.Lock()
	if version == p.version {
		p.mu.Unlock()
		return shot{}, false
	}
	s := shot{version: p.version, locks: slices.Collect(maps.Values(p.locks))}
	p.mu.Unlock()
	slices.SortFunc(s.locks, byName)
	s.both = bothKinds(s.locks)
	for _, info := range s.locks {
		if info.Holder != nil || len(together(info)) > 0 {
			s.held++
		}
		s.waiting += info.Waiting()
		if w := waitsSince(info); !w.IsZero() && (s.longest.IsZero() || w.Before(s.longest)) {
			s.longest = w
		}
	}
	return s, true
}

// status is what there is to say beside the locks.
func (p *picture) status() (state string, since time.Time, failure string, listed bool, r rates) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state, p.since, p.failure, p.listed, p.rates
}

func byName(a, b natslock.Info) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
}

// waitsSince is when the longest waiter came; zero when nobody waits.
func waitsSince(info natslock.Info) (t time.Time) {
	for _, w := range info.Queue {
		if t.IsZero() || w.Since.Before(t) {
			t = w.Since
		}
	}
	return t
}

// heldSince is the time of the first grant among the present holders. It is zero if
// there is none.
func heldSince(info natslock.Info) (t time.Time) {
	for _, h := range holdings(info) {
		if t.IsZero() || h.Since.Before(t) {
			t = h.Since
		}
	}
	return t
}
