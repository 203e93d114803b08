package top

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

const (
	// readPause is the shortest time between two reads of the bucket.
	readPause = 250 * time.Millisecond
	// readShare is which part of the time may be spent reading everything, as
	// 1/n: a bucket that takes long to read is read less often.
	readShare = 4
	// readBackstop is the time after which everything is read without an event: events
	// are hints, and some are lost.
	readBackstop = 10 * time.Second
	// readTimes bounds the time of a read, as a multiple of the limit of one request:
	// a read is many requests.
	readTimes = 10
	// readSingly is how many locks are read one by one rather than all.
	readSingly = 40
	// readMeanwhile bounds the events that are kept during a read.
	readMeanwhile = 10_000
	// freeFor is how long a lock that has become free is still shown: locks that are held
	// for short times would never be seen.
	freeFor = 2 * time.Second
)

// picture is the present state of the locks. An event changes it at once, and names a lock
// to read again, because events are hints. A read replaces the state of its locks, and the
// events since it began change that.
type picture struct {
	f    *session.Feed
	wake chan struct{} // there is something to read
	news chan struct{} // there is something to draw

	mu        sync.Mutex
	locks     map[show.LockID]admin.Info // values are never changed in place
	places    places                     // that grants took lately
	freed     map[show.LockID]time.Time  // when those became free that are shown as free
	dirty     map[show.LockID]bool
	all       bool          // everything is to be read
	listing   bool          // that is under way
	nextList  time.Time     // not before
	reading   bool          // everything, or some
	meanwhile []admin.Event // since that began
	version   int
	listed    bool // there was a list
	rates     rates
	grants    map[show.LockID]meter
	past      *history
	outage    outage
	failure   string        // of the last read
	ahead     time.Duration // of the server's clock, of this machine's
}

// rates are how often something happens to all locks.
type rates struct{ grants, handovers meter }

// outage is why the picture may be out of date; zero: it is not.
type outage struct {
	why   string
	since time.Time
}

func newPicture() *picture {
	return &picture{
		wake: make(chan struct{}, 1), news: make(chan struct{}, 1), locks: make(map[show.LockID]admin.Info), places: make(places),
		freed: make(map[show.LockID]time.Time), dirty: make(map[show.LockID]bool), grants: make(map[show.LockID]meter), past: newHistory(),
	}
}

func (p *picture) event(ev admin.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ev.Type == admin.EventWatching {
		p.watchingLocked(ev.Time)
		return
	}
	id := show.LockID{Name: ev.Name, Kind: ev.Kind}
	p.countLocked(id, ev)
	if ev.Type != admin.EventRenewed {
		p.past.add(id, ev)
	}
	if p.outage.why != "" { // by this machine's clock alone; the next mark asks for all
		p.changedLocked()
		return
	}
	if p.reading {
		p.meanwhile = append(p.meanwhile, ev)
	}
	if n := len(p.meanwhile); n > readMeanwhile { // their locks are read again
		p.meanwhile = slices.Delete(p.meanwhile, 0, n/2)
	}
	_, known := p.locks[id]
	p.applyLocked(ev)
	// A renewal is believed. One of an unknown lock is in the list that is on its way.
	if ev.Type == admin.EventRenewed && (p.all || p.listing || known && holds(p.locks[id], ev.ID)) {
		return
	}
	p.dirty[id] = true
	p.poke()
}

// watchingLocked begins again: with a list of all.
func (p *picture) watchingLocked(server time.Time) {
	now := time.Now()
	p.ahead = server.Sub(now)
	if p.outage.why != "" {
		p.past.missed(p.outage.since.Add(p.ahead), server)
	}
	p.all, p.outage = true, outage{}
	p.changedLocked()
	p.poke()
}

// countLocked counts the grants of an event.
func (p *picture) countLocked(id show.LockID, ev admin.Event) {
	if ev.Grants == 0 {
		return
	}
	now := time.Now()
	p.grants[id] = p.grants[id].add(ev.Grants, now)
	p.rates.grants = p.rates.grants.add(ev.Grants, now)
	queued := ev.Waited > 0
	if ev.Type != admin.EventGranted { // inside a client: nearly all on an idle lock, if it lingers
		queued = ev.Holder == nil || !ev.Holder.Lingers
	}
	if queued {
		p.rates.handovers = p.rates.handovers.add(ev.Grants, now)
	}
}

// applyLocked changes a lock by an event.
func (p *picture) applyLocked(ev admin.Event) {
	id := show.LockID{Name: ev.Name, Kind: ev.Kind}
	info, found := p.locks[id]
	if !found {
		info = admin.Info{Name: ev.Name, Kind: ev.Kind}
	}
	p.putLocked(p.places.applied(info, ev))
}

// putLocked sets the state of a lock.
func (p *picture) putLocked(info admin.Info) {
	id := show.IDOf(info)
	if !show.IsFree(info) {
		p.locks[id] = info
		delete(p.freed, id)
	} else if _, held := p.locks[id]; held {
		delete(p.locks, id)
		p.freed[id] = time.Now()
	}
	p.changedLocked()
}

// changedLocked asks for the picture to be drawn.
func (p *picture) changedLocked() {
	p.version++
	select {
	case p.news <- struct{}{}:
	default:
	}
}

func (p *picture) disconnected() { p.outOfDate("disconnected") }

func (p *picture) absent(why error) {
	if errors.Is(why, kvstore.ErrNotFound) {
		p.outOfDate("no bucket")
		p.mu.Lock()
		defer p.mu.Unlock()
		clear(p.locks) // they are gone with it
		clear(p.freed)
		p.changedLocked()
		return
	}
	p.outOfDate("no answer")
}

func (p *picture) outOfDate(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.outage.why {
	case why:
		return
	case "":
		p.outage.since = time.Now()
	}
	p.outage.why = why
	p.changedLocked()
}

func (p *picture) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// run reads the locks that have changed until ctx ends.
func (p *picture) run(ctx context.Context) {
	backstop := time.NewTicker(readBackstop)
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
		p.read()
		select {
		case <-time.After(readPause):
		case <-ctx.Done():
		}
	}
}

// begin begins a read of the locks that are due: all, or some. Others stay for later.
func (p *picture) begin() (some map[show.LockID]bool, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	some, all = p.dueLocked()
	p.reading, p.listing, p.meanwhile = all || len(some) > 0, all, nil
	p.places.forget(time.Now())
	return some, all
}

func (p *picture) dueLocked() (some map[show.LockID]bool, all bool) {
	some, wait := p.dirty, time.Until(p.nextList)
	switch {
	case p.outage.why != "": // nobody to ask; the next mark asks for all
		return nil, false
	case !p.all && len(some) <= readSingly:
		p.dirty = make(map[show.LockID]bool)
		return some, false
	case wait <= 0:
		p.dirty, p.all = make(map[show.LockID]bool), false
		return nil, true
	}
	time.AfterFunc(wait, p.poke)
	some = make(map[show.LockID]bool)
	for id := range p.dirty {
		if len(some) < readSingly {
			some[id] = true
			delete(p.dirty, id)
		}
	}
	return some, false
}

// read reads the locks that are due. It reads a lock that failed again the next time.
func (p *picture) read() {
	begun := time.Now()
	dirty, all := p.begin()
	if !all && len(dirty) == 0 {
		return
	}
	found := make(map[show.LockID]admin.Info)
	err := p.f.With(readTimes*p.f.Globals.Timeout, func(ctx context.Context, c *natslock.Client) error {
		if all {
			for info, err := range admin.New(c).List(ctx, p.f.Pattern) {
				if err != nil {
					return err
				}
				show.InOrder(info.Readers)
				found[show.IDOf(info)] = info
			}
			return nil
		}
		for id := range dirty {
			info, err := admin.New(c).Inspect(ctx, id.Kind, id.Name)
			if err != nil {
				return err
			}
			show.InOrder(info.Readers)
			found[id] = info
		}
		return nil
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failure, p.reading, p.listing = "", false, false
	if all {
		p.nextList = time.Now().Add((readShare - 1) * time.Since(begun))
	}
	switch {
	case errors.Is(err, session.ErrNoBucket):
		return
	case err != nil:
		p.failure, p.all = err.Error(), true
		time.AfterFunc(session.BucketWait, p.poke)
		p.changedLocked()
		return
	}
	p.foundLocked(found, all)
	if all {
		p.listed = true
		p.forgetRatesLocked()
	}
}

// foundLocked puts what a read has found: all locks, or some. A place whose grant is known
// is not shown, and its lock is read again: the place may belong to another waiter.
func (p *picture) foundLocked(found map[show.LockID]admin.Info, all bool) {
	if all {
		for id := range p.locks {
			if _, there := found[id]; !there {
				found[id] = admin.Info{Name: id.Name, Kind: id.Kind}
			}
		}
	}
	taken := p.places.ids()
	for id, info := range found {
		waiters := len(info.Queue)
		info.Queue = slices.DeleteFunc(info.Queue, func(w admin.Waiter) bool { return taken[w.ID] })
		if len(info.Queue) < waiters {
			p.dirty[id] = true
			p.poke()
		}
		p.putLocked(info)
	}
	for _, ev := range p.meanwhile {
		if _, read := found[show.LockID{Name: ev.Name, Kind: ev.Kind}]; read || all {
			p.applyLocked(ev)
		}
	}
	p.changedLocked()
}

// forgetRatesLocked drops the rates of locks without a grant for long.
func (p *picture) forgetRatesLocked() {
	now := time.Now()
	maps.DeleteFunc(p.grants, func(_ show.LockID, m meter) bool { return m.rate(now) < minRate })
}
