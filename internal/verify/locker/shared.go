package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/natslock"
)

// gateOf returns the gate of a reader-writer lock and the gate's queue.
func gateOf(name string) target { return target{"rw." + encoded(name), "rwait." + encoded(name)} }

// queuing holds a place in a queue. Its user must eventually leave the place.
type queuing struct {
	p     *plain
	place *lease
}

// leave ends the place.
func (q *queuing) leave(status int) {
	if q.place == nil {
		return
	}
	q.place.cancel(nil)
	q.place.mu.Lock()
	defer q.place.mu.Unlock()
	q.p.remove(q.place.key, status, q.place.id, q.place.revision)
	q.place = nil
}

// before returns the places ahead of its own, or all places if it has none.
func (q *queuing) before(places []stored) []stored {
	for i, s := range places {
		if q.place != nil && s.id() == q.place.id {
			return places[:i]
		}
	}
	return places
}

// ensure queues, or queues again if the place has ended.
func (q *queuing) ensure(t target, more map[string]any) bool {
	if q.place != nil && q.place.ctx.Err() == nil {
		return true
	}
	q.place = q.p.queued(t, more)
	return q.place != nil
}

// tick is the polling interval of a client that waits for readers or for a gate.
const tick = 50 * time.Millisecond

// reader joins a reader-writer lock.
func (p *plain) reader(name string, wait time.Duration) (mutex, error) {
	t, m := gateOf(name), map[string]any{"m": 1}
	q := &queuing{p: p}
	end := time.Now().Add(max(wait, 10*time.Second))
	if wait > 0 {
		end = time.Now().Add(wait)
	}
	id := rand.Text()
	granted := 5 // the status with which its place ends when it is granted the lock
	for time.Now().Before(end) {
		gate, places, ok := p.look(t)
		if !ok {
			time.Sleep(tick)
			continue
		}
		blocked := gate.live() && p.weak != joinsHeld
		for _, s := range q.before(places) {
			blocked = blocked || q.place == nil || (s.number("m") == 0 || p.weak == waitsReaders) && p.weak != passesWriters
		}
		if blocked {
			if wait == 0 {
				return nil, natslock.ErrLocked
			}
			if !q.ensure(t, m) {
				return nil, errors.New("no place in the queue")
			}
			time.Sleep(tick)
			if gate, places, ok = p.look(t); !ok {
				continue
			}
			blocked = gate.live() && p.weak != joinsHeld
			for _, s := range q.before(places) {
				blocked = blocked || (s.number("m") == 0 || p.weak == waitsReaders) && p.weak != passesWriters
			}
			if blocked {
				continue
			}
		}
		if granted = 5; len(q.before(places)) > 0 && p.weak != firstOfAny { // other readers
			granted = 9
		}
		if p.weak != joinsAgain {
			id = rand.Text()
		}
		c := &claim{p: p, key: "read." + encoded(name) + "." + id, id: id, guard: t.key, more: m, sent: map[uint64]time.Time{}}
		if p.weak == noGuard {
			c.guard = ""
			gate.revision = 0
		}
		l, _, err := c.attempt(gate.revision)
		c.end()
		if l != nil {
			q.leave(granted)
			return l, nil
		}
		if p.weak == clearsGate {
			p.remove(t.key, 4, id, gate.revision)
		}
		if err != nil {
			q.leave(4)
			return nil, err
		}
	}
	q.leave(4)
	return nil, natslock.ErrTimeout
}

// writer takes the gate, and waits until no reader is left.
func (p *plain) writer(name string, wait time.Duration) (mutex, error) {
	readers := "read." + encoded(name) + ".*"
	if wait == 0 && p.weak != noDrain {
		if n, ok := p.reading(readers, 0); !ok || n > 0 {
			return nil, natslock.ErrLocked
		}
	}
	end := time.Now().Add(max(wait, 2*time.Second))
	l, err := p.one(gateOf(name), wait)
	if err != nil {
		return nil, err
	}
	if p.weak == noDrain {
		return l, nil
	}
	hinted := make(chan struct{}, 1)
	sub, err := p.nc.Subscribe(p.notify+readers, func(m *nats.Msg) {
		if of(m).deleted {
			select {
			case hinted <- struct{}{}:
			default:
			}
		}
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	for time.Now().Before(end) && l.ctx.Err() == nil {
		if n, ok := p.reading(readers, l.token>>6); ok && n == 0 {
			return l, nil
		}
		select {
		case <-hinted:
			if p.weak == hintDrains {
				return l, nil
			}
		case <-time.After(tick):
		}
	}
	if err := l.Unlock(context.Background()); err != nil {
		return nil, err
	}
	return nil, natslock.ErrTimeout
}

// reading counts the readers, using an answer recent enough to contain the gate.
func (p *plain) reading(filter string, gate uint64) (n int, ok bool) {
	var info struct {
		Created string
		State   struct {
			Last     uint64 `json:"last_seq"`
			Subjects map[string]uint64
		}
	}
	m, err := p.nc.Request("$JS.API.STREAM.INFO.KV_"+p.bucket, fmt.Appendf(nil, `{"subjects_filter":"$KV.%s.%s"}`, p.bucket, filter), time.Second)
	if err != nil || json.Unmarshal(m.Data, &info) != nil || info.State.Last < gate && p.weak != oldDrain {
		return 0, false
	}
	p.mu.Lock()
	another := info.Created != p.created
	p.mu.Unlock()
	if another && p.weak != anyAnswer {
		return 0, false
	}
	for subject := range info.State.Subjects {
		s, err := p.read(subject[len("$KV.."+p.bucket):])
		if err != nil {
			return 0, false
		}
		switch {
		case s.deleted, s.number("s") == 3 && p.weak == brokenIsGone:
		case p.overdue(s):
			if p.remove(s.key, 4, s.id(), s.revision).revision == 0 {
				n++
			}
		default: // even if a listed reader is not found, ask again
			n++
		}
	}
	return n, true
}

// permit takes a slot of a semaphore.
func (p *plain) permit(name string, permits int, wait time.Duration) (mutex, error) {
	more := map[string]any{"q": permits}
	if p.weak == highSlots {
		permits++
	}
	t := target{"sem." + encoded(name) + ".*", "swait." + encoded(name)}
	q := &queuing{p: p}
	end := time.Now().Add(max(wait, 10*time.Second))
	if wait > 0 {
		end = time.Now().Add(wait)
	}
	for time.Now().Before(end) {
		places, slots, ok := p.slots(t)
		if !ok {
			time.Sleep(tick)
			continue
		}
		free := -1
		for k := range permits {
			if s := slots[k]; !s.live() {
				free = k
			}
		}
		blocked := free < 0 || len(q.before(places)) > 0 && p.weak != passesQueue && p.weak != anyVacancy
		if blocked || q.place == nil && len(places) > 0 && p.weak != passesQueue {
			if wait == 0 {
				return nil, natslock.ErrLocked
			}
			if !q.ensure(t, more) {
				return nil, errors.New("no place in the queue")
			}
			time.Sleep(tick)
			continue
		}
		c := p.claim(fmt.Sprintf("sem.%s.%d", encoded(name), free))
		c.more = more
		l, _, err := c.attempt(slots[free].revision)
		if p.weak != twoClaims {
			c.end()
		}
		if l != nil {
			q.leave(5)
			return l, nil
		}
		if err != nil {
			q.leave(4)
			return nil, err
		}
		if p.weak != twoClaims { // an unanswered attempt may still be stored
			c.settle(slots[free].revision)
		}
	}
	q.leave(4)
	return nil, natslock.ErrTimeout
}

// settle removes whatever an unanswered attempt may have stored.
func (c *claim) settle(expect uint64) {
	if r := c.p.remove(c.key, 4, c.id, expect); r.refused {
		if s, err := c.p.read(c.key); err == nil && s.live() && s.id() == c.id {
			c.p.remove(c.key, 4, c.id, s.revision)
		}
	}
}

// slots reads a semaphore's slots and queue from a single state.
func (p *plain) slots(t target) (places []stored, slots map[int]stored, ok bool) {
	slots = map[int]stored{}
	_, places, ok = p.look(t)
	if !ok {
		return nil, nil, false
	}
	var info struct {
		State struct{ Subjects map[string]uint64 }
	}
	m, err := p.nc.Request("$JS.API.STREAM.INFO.KV_"+p.bucket, fmt.Appendf(nil, `{"subjects_filter":"$KV.%s.%s"}`, p.bucket, t.key), time.Second)
	if err != nil || json.Unmarshal(m.Data, &info) != nil {
		return nil, nil, false
	}
	for subject := range info.State.Subjects {
		s, err := p.read(subject[len("$KV.."+p.bucket):])
		var k int
		if _, scanned := fmt.Sscanf(subject[len("$KV.."+p.bucket)+len(t.key)-1:], "%d", &k); err != nil || scanned != nil {
			return nil, nil, false
		}
		slots[k] = s
	}
	return places, slots, true
}
