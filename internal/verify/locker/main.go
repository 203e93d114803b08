// Command locker speaks lockconform's line protocol, which docs/protocol/conform.md specifies.
// It locks with the library or, with -plain, with a separate locker written from docs/protocol.
// -weak makes that locker break a rule, so that a test can check that lockconform catches it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
)

type request struct {
	ID     int    `json:"id"`
	Do     string `json:"do"`
	URL    string `json:"url"`
	Bucket string `json:"bucket"`
	TTL    int64  `json:"ttl"`
	Name   string `json:"name"`
	Wait   int64  `json:"wait"`
	// Kind is "read", "write" or "permit" (one of Permits permits). If it is empty, the lock is
	// a mutex.
	Kind    string `json:"kind"`
	Permits int    `json:"permits"`
}

type answer struct {
	ID     int    `json:"id,omitempty"`
	Result string `json:"result,omitempty"`
	Token  uint64 `json:"token,omitempty"`
	Held   bool   `json:"held,omitempty"`
	Left   int64  `json:"left,omitempty"`
	Why    string `json:"why,omitempty"`
	Event  string `json:"event,omitempty"`
	Name   string `json:"name,omitempty"`
}

// mutex is a lock that was granted.
type mutex interface {
	Token() uint64
	Remaining() time.Duration                            // 0 if not held
	Context() context.Context                            // ends with the lease
	Extend(ctx context.Context, ttl time.Duration) error // 0 keeps the TTL
	Unlock(ctx context.Context) error
}

// client takes the lock that a request names. If the request's wait is 0, it does not wait.
type client interface {
	take(ctx context.Context, r request) (mutex, error)
}

// locker answers the requests of a run.
type locker struct {
	plain bool
	weak  string

	client client

	out   sync.Mutex
	mu    sync.Mutex
	locks map[string]mutex // the latest lock of each name
	ended map[string]bool  // the names whose latest lock was unlocked
}

func main() {
	l := &locker{locks: map[string]mutex{}, ended: map[string]bool{}}
	flag.BoolVar(&l.plain, "plain", false, "use the locker that does without the library")
	flag.StringVar(&l.weak, "weak", "", "the rule that the plain locker breaks")
	flag.Parse()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			log.Fatal(err)
		}
		switch r.Do {
		case "open": // before any other request
			l.say(l.answer(r))
		case "close":
			l.say(answer{ID: r.ID, Result: "ok"})
			return
		default:
			go func() { l.say(l.answer(r)) }()
		}
	}
}

func (l *locker) say(a answer) {
	line, err := json.Marshal(a)
	if err != nil {
		log.Fatal(err)
	}
	l.out.Lock()
	defer l.out.Unlock()
	_, _ = os.Stdout.Write(append(line, '\n'))
}

var errNone = errors.New("this program has never taken a lock of that name")

func (l *locker) answer(r request) answer {
	a := answer{ID: r.ID, Result: "ok"}
	var err error
	switch r.Do {
	case "open":
		err = l.open(r)
	case "try", "lock":
		var m mutex
		if m, err = l.client.take(context.Background(), r); err == nil {
			l.keep(r.Name, m)
			a.Token, a.Left = m.Token(), m.Remaining().Milliseconds()
		}
	case "unlock":
		if m := l.of(r.Name); m != nil {
			l.mu.Lock()
			l.ended[r.Name] = true
			l.mu.Unlock()
			err = m.Unlock(context.Background())
		} else {
			err = errNone
		}
	case "extend":
		if m := l.of(r.Name); m != nil {
			err = m.Extend(context.Background(), time.Duration(r.TTL)*time.Millisecond)
		} else {
			err = errNone
		}
	case "status":
		if m := l.of(r.Name); m != nil {
			if left := m.Remaining(); left > 0 {
				a.Held, a.Token, a.Left = true, m.Token(), left.Milliseconds()
			}
		}
	default:
		err = errors.New("unknown request")
	}
	if err != nil {
		a.Why = err.Error()
		switch {
		case errors.Is(err, natslock.ErrLocked), errors.Is(err, natslock.ErrTimeout):
			a.Result = "refused"
		case errors.Is(err, natslock.ErrLost), errors.Is(err, natslock.ErrBroken):
			a.Result = "lost"
		default:
			a.Result = "error"
		}
	}
	return a
}

// of returns the latest lock of a name.
func (l *locker) of(name string) mutex {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.locks[name]
}

// keep remembers a lock, and reports when it is lost.
func (l *locker) keep(name string, m mutex) {
	l.mu.Lock()
	l.locks[name], l.ended[name] = m, false
	l.mu.Unlock()
	go func() {
		<-m.Context().Done()
		l.mu.Lock()
		ended := l.ended[name] || l.locks[name] != m
		l.mu.Unlock()
		if !ended {
			l.say(answer{Event: "lost", Name: name})
		}
	}()
}

func (l *locker) open(r request) error {
	nc, err := nats.Connect(r.URL, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return err
	}
	ttl := time.Duration(r.TTL) * time.Millisecond
	if l.plain {
		l.client, err = newPlain(nc, r.Bucket, ttl, l.weak)
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := natslock.New(ctx, nc, natslock.WithBucket(r.Bucket), natslock.WithTTL(ttl), natslock.WithCreate(false))
	if err != nil {
		nc.Close()
		return err
	}
	l.client = library{c}
	return nil
}

// library is a client that uses natslock.
type library struct{ *natslock.Client }

func (c library) take(ctx context.Context, r request) (mutex, error) {
	wait := natslock.MaxWait(time.Duration(r.Wait) * time.Millisecond)
	lock := func() (*natslock.Lock, error) {
		switch r.Kind {
		case "read":
			if rw := rwlock.New(c.Client); r.Wait > 0 {
				return rw.RLock(ctx, r.Name, wait)
			} else {
				return rw.TryRLock(ctx, r.Name)
			}
		case "write":
			if rw := rwlock.New(c.Client); r.Wait > 0 {
				return rw.Lock(ctx, r.Name, wait)
			} else {
				return rw.TryLock(ctx, r.Name)
			}
		case "permit":
			if sem := semaphore.New(c.Client, r.Permits); r.Wait > 0 {
				return sem.Acquire(ctx, r.Name, wait)
			} else {
				return sem.TryAcquire(ctx, r.Name)
			}
		}
		if r.Wait > 0 {
			return c.Lock(ctx, r.Name, wait)
		}
		return c.TryLock(ctx, r.Name)
	}
	l, err := lock()
	if err != nil {
		return nil, err
	}
	return l, nil
}
