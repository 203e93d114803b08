package natslock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// Do runs a function under a lock. The function's context ends when the lock is lost, so
// that the work stops before the next holder begins.
func ExampleClient_Do() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	err := locks.Do(ctx, "reports.daily", func(ctx context.Context, l *natslock.Lock) error {
		fmt.Println("nobody else makes", l.Name())
		return ctx.Err()
	})
	if errors.Is(err, natslock.ErrLost) {
		fmt.Println("somebody else may have made it too:", err)
	}
	fmt.Println(err)
	// Output:
	// nobody else makes reports.daily
	// <nil>
}

func ExampleClient_Lock() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithTTL(10 * time.Second))
	defer done()

	l, err := locks.Lock(ctx, "orders.42", natslock.MaxWait(time.Minute))
	if err != nil {
		log.Fatal(err) // matches natslock.ErrTimeout after a minute
	}
	fmt.Println(l.Err(), l.Remaining() > 8*time.Second)
	if err := l.Unlock(ctx); err != nil {
		log.Print(err) // matches natslock.ErrLost if the lock was lost
	}
	fmt.Println(errors.Is(l.Err(), natslock.ErrReleased))
	// Output:
	// <nil> true
	// true
}

// TryLock does not wait. Its error tells who holds the lock.
func ExampleClient_TryLock() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithOwner("web-1"))
	defer done()

	l, err := locks.TryLock(ctx, "cleanup")
	fmt.Println("first:", err)
	_, err = locks.TryLock(ctx, "cleanup")
	if locked, ok := errors.AsType[*natslock.LockedError](err); ok {
		fmt.Println("second: held by", locked.Holder.Owner, "myself:", locked.Own)
	}
	_ = l.Unlock(ctx)
	// Output:
	// first: <nil>
	// second: held by web-1 myself: true
}

// ledger is a resource that rejects writes with a token lower than the highest it has
// seen.
type ledger struct {
	newest uint64
	lines  []string
}

func (r *ledger) write(token uint64, line string) error {
	if token < r.newest {
		return errors.New("refused: the lock has passed on")
	}
	r.newest = token
	r.lines = append(r.lines, line)
	return nil
}

func ExampleClient_Stats() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	for range 3 {
		if err := locks.Do(ctx, "orders.42", func(context.Context, *natslock.Lock) error { return nil }); err != nil {
			log.Fatal(err)
		}
	}
	s := locks.Stats()
	fmt.Println(s.Granted, "granted,", s.Released, "released,", s.Lost, "lost,", s.Held, "held now")
	// Output: 3 granted, 3 released, 0 lost, 0 held now
}

// Healthy does no I/O, so a probe can call it as often as it likes.
func ExampleClient_Healthy() {
	nc, stop := example.Connect()
	defer stop()
	ctx := context.Background()
	locks, err := natslock.New(ctx, nc)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
	fmt.Println(locks.Healthy())
	nc.Close()
	fmt.Println(errors.Is(locks.Healthy(), natslock.ErrUnavailable))
	// Output:
	// <nil>
	// true
}

// Close waits for the holders to unlock. If its context ends first, Close ends the
// contexts of the remaining locks and leaves their records to expire.
func ExampleClient_Close() {
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(context.Background(), "orders.42")
	if err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background()) // or a timeout
	cancel()
	err = locks.Close(ctx)
	fmt.Println(errors.Is(err, context.Canceled))
	fmt.Println(errors.Is(context.Cause(l.Context()), natslock.ErrClosed))
	// Output:
	// true
	// true
}

// Join accepts arbitrary bytes. A dot within a part does not start a new token.
func ExampleJoin() {
	fmt.Println(natslock.Join("orders", "42"))
	fmt.Println(natslock.Join("tenant", "a.b", "x y"))
	// Output:
	// orders.42
	// tenant.a=2Eb.x y
}

// A process needs one client per connection.
func ExampleNew() {
	nc, stop := example.Connect() // a service calls nats.Connect
	defer stop()
	ctx := context.Background()
	locks, err := natslock.New(ctx, nc, natslock.WithOwner("billing-1"), natslock.WithTTL(30*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
	fmt.Println(locks.Healthy())
	// Output: <nil>
}

// TryDo gives up if another client is already doing the work.
func ExampleClient_TryDo() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	err := locks.TryDo(ctx, "cleanup", func(ctx context.Context, l *natslock.Lock) error {
		err := locks.TryDo(ctx, "cleanup", func(context.Context, *natslock.Lock) error {
			fmt.Println("this does not run")
			return nil
		})
		fmt.Println("left to others:", errors.Is(err, natslock.ErrLocked))
		return nil
	})
	fmt.Println(err)
	// Output:
	// left to others: true
	// <nil>
}

// Unlike a deadline on the context, MaxWait limits only the wait, not the work.
func ExampleMaxWait() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}

	_, err = locks.Lock(ctx, "orders.42", natslock.MaxWait(50*time.Millisecond))
	fmt.Println(errors.Is(err, natslock.ErrTimeout), l.Err())
	_ = l.Unlock(ctx)
	// Output: true <nil>
}

// When the context given to Lock ends, so does the lock's context, unless the lock is
// Detached.
func ExampleDetached() {
	locks, done := example.Client()
	defer done()
	ctx, cancel := context.WithCancel(context.Background())
	child, err := locks.Lock(ctx, "a")
	if err != nil {
		log.Fatal(err)
	}
	detached, err := locks.Lock(ctx, "b", natslock.Detached())
	if err != nil {
		log.Fatal(err)
	}

	cancel()
	fmt.Println(child.Remaining() > 0, child.Err())
	fmt.Println(detached.Remaining() > 0, detached.Err())
	_ = child.Unlock(ctx) // works even though ctx has ended
	_ = detached.Unlock(ctx)
	// Output:
	// true context canceled
	// true <nil>
}

// Until takes a lock for the rest of a period. The lock is never renewed, and no one else
// runs the job in this period, even if this process dies.
func ExampleUntil() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	end := time.Now().Add(2 * time.Second)

	l, err := locks.TryLock(ctx, "report.hourly", natslock.Until(end))
	if err != nil {
		log.Fatal(err) // errors.Is(err, natslock.ErrLocked): another process runs it
	}
	<-l.Context().Done()
	fmt.Println(errors.Is(l.Err(), natslock.ErrEnded), errors.Is(l.Err(), natslock.ErrLost))
	// Output: true false
}

// A lingering lock stays with its client after the last Unlock. That client's next Lock
// costs no message, and another client gets the lock as soon as it asks.
func ExampleLinger() {
	ctx := context.Background()
	nc, stop := example.Connect()
	defer stop()
	locks, err := natslock.New(ctx, nc)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
	other, err := natslock.New(ctx, nc) // usually in another process
	if err != nil {
		log.Fatal(err)
	}
	defer other.Close(ctx)

	for range 100 {
		err := locks.Do(ctx, "cache.42", func(context.Context, *natslock.Lock) error { return nil }, natslock.Linger(time.Minute))
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("idle:", locks.Stats().Idle)
	l, err := other.Lock(ctx, "cache.42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("idle:", locks.Stats().Idle, "and with the other client:", l.Err() == nil)
	_ = l.Unlock(ctx)
	// Output:
	// idle: 1
	// idle: 0 and with the other client: true
}

// MinHold keeps replicas with slightly different clocks from running a short job twice.
// Here the second replica tries 10 ms later, when the job is already done.
func ExampleMinHold() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	hourly := func() error {
		return locks.TryDo(ctx, "report.hourly", func(context.Context, *natslock.Lock) error {
			fmt.Println("the report is written")
			return nil
		}, natslock.MinHold(time.Minute))
	}

	fmt.Println(hourly())
	time.Sleep(10 * time.Millisecond)
	fmt.Println("left to the other:", errors.Is(hourly(), natslock.ErrLocked))
	info, err := admin.New(locks).Inspect(ctx, admin.KindMutex, "report.hourly")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("not renewed any more:", info.Holder.Fixed)
	// Output:
	// the report is written
	// <nil>
	// left to the other: true
	// not renewed any more: true
}

// Adopt takes over the lock that a handle identifies, with the same fencing token. A
// handle works only once.
func ExampleClient_Adopt() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(ctx, "build.7")
	if err != nil {
		log.Fatal(err)
	}
	handle, err := l.Handoff(ctx)
	if err != nil {
		log.Fatal(err)
	}

	adopted, err := locks.Adopt(ctx, handle) // usually in another process
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(adopted.Err(), adopted.Token() == l.Token())
	_, err = locks.Adopt(ctx, handle)
	fmt.Println("again:", errors.Is(err, natslock.ErrNotHandedOver))
	_ = adopted.Unlock(ctx)
	// Output:
	// <nil> true
	// again: true
}

// EarlyWarning calls its function while there is still time to stop.
func ExampleEarlyWarning() {
	_ = func(ctx context.Context, locks *natslock.Client, batches []func(context.Context) error) error {
		stop := make(chan struct{}, 1)
		warn := natslock.EarlyWarning(3*time.Second, func(*natslock.Lock) { stop <- struct{}{} })
		return locks.Do(ctx, "import", func(ctx context.Context, l *natslock.Lock) error {
			for _, batch := range batches {
				select {
				case <-stop:
					return errors.New("stopped early: the server does not answer")
				default:
				}
				if err := batch(ctx); err != nil {
					return err
				}
			}
			return nil
		}, warn)
	}
}

// The configuration applies only when New creates the bucket. It never changes an
// existing one.
func ExampleWithBucketConfig() {
	onCluster := func(ctx context.Context, nc *nats.Conn) error {
		locks, err := natslock.New(ctx, nc, natslock.WithBucketConfig(kvstore.Config{Replicas: 3, MaxBytes: 64 << 20}))
		if err != nil {
			return err
		}
		return locks.Close(ctx)
	}
	fmt.Println(onCluster != nil)
	// Output: true
}

// Three replicas are the default on a cluster. With WithReplicas(3), New fails if there
// are fewer servers, instead of creating a bucket that a single failure can take down.
func ExampleWithReplicas() {
	onCluster := func(ctx context.Context, nc *nats.Conn) error {
		locks, err := natslock.New(ctx, nc, natslock.WithReplicas(3))
		if err != nil {
			return err
		}
		return locks.Close(ctx)
	}
	nc, stop := example.Connect()
	defer stop()
	fmt.Println(onCluster(context.Background(), nc) != nil)
	// Output: true
}

// Goroutines of all clients get the lock in exactly the order in which they asked, and a
// break is noticed immediately.
func ExampleWithTuning() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithTuning(natslock.Tuning{Turn: -1, WatchAfter: 1}))
	defer done()
	fmt.Println(locks.Do(ctx, "orders.42", func(ctx context.Context, l *natslock.Lock) error { return ctx.Err() }))
	// Output: <nil>
}

// Meta tells other clients and operators what the holder is doing.
func ExampleMeta() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(ctx, "orders.42", natslock.Meta(map[string]string{"ticket": "OPS-1"}))
	if err != nil {
		log.Fatal(err)
	}

	info, err := admin.New(locks).Inspect(ctx, admin.KindMutex, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Holder.Meta["ticket"])
	_ = l.Unlock(ctx)
	// Output: OPS-1
}

// NoRenew takes a lease that the client does not renew. It ends with its TTL unless it is
// extended.
func ExampleNoRenew() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(ctx, "orders.42", natslock.NoRenew(), natslock.TTL(time.Second))
	if err != nil {
		log.Fatal(err)
	}
	<-l.Context().Done()
	fmt.Println(errors.Is(l.Err(), natslock.ErrLost))
	// Output: true
}

// The server counts whole seconds, so a TTL of 1.5 s is rounded up to 2 s.
func ExampleTTL() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	l, err := locks.Lock(ctx, "orders.42", natslock.TTL(1500*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	info, err := admin.New(locks).Inspect(ctx, admin.KindMutex, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Holder.TTL)
	_ = l.Unlock(ctx)
	_, err = locks.Lock(ctx, "orders.42", natslock.TTL(48*time.Hour))
	fmt.Println(errors.Is(err, natslock.ErrInvalid))
	// Output:
	// 2s
	// true
}

// Locks of the same name in different buckets are independent.
func ExampleWithBucket() {
	ctx := context.Background()
	nc, stop := example.Connect()
	defer stop()
	for _, tenant := range []string{"tenant-a", "tenant-b"} {
		locks, err := natslock.New(ctx, nc, natslock.WithBucket(tenant))
		if err != nil {
			log.Fatal(err)
		}
		defer locks.Close(ctx)
		l, err := locks.TryLock(ctx, "orders.42")
		if err != nil {
			log.Fatal(err)
		}
		defer l.Unlock(ctx)
		fmt.Println(tenant, l.Err())
	}
	// Output:
	// tenant-a <nil>
	// tenant-b <nil>
}

// A service that is not allowed to create streams needs an existing bucket.
func ExampleWithCreate() {
	nc, stop := example.Connect()
	defer stop()
	_, err := natslock.New(context.Background(), nc, natslock.WithCreate(false))
	fmt.Println("an operator has to create it:", errors.Is(err, kvstore.ErrNotFound))
	// Output: an operator has to create it: true
}

// WithJetStream reaches JetStream through an API prefix or a domain: see
// jetstream.NewWithDomain.
func ExampleWithJetStream() {
	ctx := context.Background()
	nc, stop := example.Connect()
	defer stop()
	js, err := jetstream.NewWithAPIPrefix(nc, "$JS.API")
	if err != nil {
		log.Fatal(err)
	}
	locks, err := natslock.New(ctx, nc, natslock.WithJetStream(js))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(locks.Close(ctx))
	// Output: <nil>
}

// The owner is a name for humans. It does not affect locking.
func ExampleWithOwner() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithOwner("billing-1"))
	defer done()
	l, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	info, err := admin.New(locks).Inspect(ctx, admin.KindMutex, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(info.Holder.Owner)
	_ = l.Unlock(ctx)
	// Output: billing-1
}

// The client's TTL limits how long a crashed holder keeps others out.
func ExampleWithTTL() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithTTL(time.Minute))
	defer done()
	l, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(l.Remaining() > 50*time.Second)
	_ = l.Unlock(ctx)
	// Output: true
}

// The logger receives warnings and, as here, the news that New has created the bucket.
func ExampleWithLogger() {
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.LevelKey || a.Key == slog.MessageKey {
			return a
		}
		return slog.Attr{}
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	_, done := example.Client(natslock.WithLogger(logger))
	done()
	// Output: level=INFO msg="created lock bucket"
}

// A LockedError tells who holds the lock that TryLock did not get.
func ExampleLockedError() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithOwner("web-1"))
	defer done()
	l, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}

	_, err = locks.TryLock(ctx, "orders.42")
	if locked, ok := errors.AsType[*natslock.LockedError](err); ok && locked.Holder != nil {
		fmt.Println(locked.Name, "is held by", locked.Holder.Owner, "and", locked.Queued, "wait")
	}
	_ = l.Unlock(ctx)
	// Output: orders.42 is held by web-1 and 0 wait
}

// A TimeoutError tells how long the client waited, and who held the lock.
func ExampleTimeoutError() {
	ctx := context.Background()
	locks, done := example.Client(natslock.WithOwner("web-1"))
	defer done()
	l, err := locks.Lock(ctx, "orders.42")
	if err != nil {
		log.Fatal(err)
	}

	_, err = locks.Lock(ctx, "orders.42", natslock.MaxWait(50*time.Millisecond))
	if timeout, ok := errors.AsType[*natslock.TimeoutError](err); ok {
		fmt.Println(timeout.Name, timeout.Waited >= 50*time.Millisecond, timeout.Timeout())
	}
	_ = l.Unlock(ctx)
	// Output: orders.42 true true
}

// LockAll takes locks in the same order in every client, so two transfers between the
// same accounts do not deadlock.
func ExampleClient_LockAll() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	all, err := locks.LockAll(ctx, []string{"account.9", "account.4"})
	if err != nil {
		log.Fatal(err)
	}
	err = all.Do(func(ctx context.Context, l *natslock.LockSet) error {
		fmt.Println(l.Names(), ctx.Err())
		return nil
	})
	fmt.Println(errors.Is(all.Err(), natslock.ErrReleased), err)
	// Output:
	// [account.4 account.9] <nil>
	// true <nil>
}

// Once runs a named job once, in whichever replica comes first. The other replicas learn
// that the job is done.
func ExampleClient_Once() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()

	for range 3 { // usually in different replicas
		err := locks.Once(ctx, "reports.2026-11", 31*24*time.Hour, func(ctx context.Context, l *natslock.Lock) error {
			fmt.Println("the report of November", ctx.Err())
			return nil
		})
		fmt.Println(errors.Is(err, natslock.ErrDone))
	}
	// Output:
	// the report of November <nil>
	// false
	// true
	// true
}

// A daily job runs after 02:00 in Berlin, in whichever replica asks first. Every replica
// runs this loop. A SIGTERM ends ctx but, because of Detached, does not interrupt the
// job.
func ExampleClient_Once_daily() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	locks, done := example.Client()
	defer done()
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		log.Fatal(err)
	}
	report := func(ctx context.Context, l *natslock.Lock) error {
		fmt.Println("the report of", l.Name(), "with token", l.Token())
		return ctx.Err()
	}
	tick := time.Tick(5 * time.Minute)
	for ctx.Err() == nil {
		if now := time.Now().In(zone); now.Hour() >= 2 {
			err := locks.Once(ctx, "report."+now.Format(time.DateOnly), 48*time.Hour, report, natslock.Detached())
			if err != nil && !errors.Is(err, natslock.ErrLocked) {
				log.Print(err) // the next tick tries again
			}
		}
		select {
		case <-tick:
		case <-ctx.Done():
		}
	}
}

// TryLockAll takes all of the locks or none.
func ExampleClient_TryLockAll() {
	ctx := context.Background()
	locks, done := example.Client()
	defer done()
	busy, err := locks.Lock(ctx, "account.9")
	if err != nil {
		log.Fatal(err)
	}

	_, err = locks.TryLockAll(ctx, []string{"account.4", "account.9"})
	if locked, ok := errors.AsType[*natslock.LockedError](err); ok {
		fmt.Println("held:", locked.Name)
	}
	_ = busy.Unlock(ctx)
	all, err := locks.TryLockAll(ctx, []string{"account.4", "account.9"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(all.Token("account.9") > 0)
	fmt.Println(all.Unlock(ctx))
	// Output:
	// held: account.9
	// true
	// <nil>
}
