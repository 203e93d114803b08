package fence_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/fence"
	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
)

// start starts a server with a stream named ORDERS and a bucket named settings.
func start() (nc *nats.Conn, js jetstream.JetStream, stop func()) {
	ctx := context.Background()
	nc, stop = example.Connect()
	js, err := jetstream.New(nc)
	if err != nil {
		log.Fatal(err)
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, AllowAtomicPublish: true})
	if err != nil {
		log.Fatal(err)
	}
	if err := newBucket(ctx, js, "settings"); err != nil {
		log.Fatal(err)
	}
	return nc, js, stop
}

// newBucket creates a bucket that supports KV.Create and KV.Update.
func newBucket(ctx context.Context, js jetstream.JetStream, name string) error {
	_, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: name})
	if err != nil {
		return err
	}
	stream, err := js.Stream(ctx, "KV_"+name)
	if err != nil {
		return err
	}
	config := stream.CachedInfo().Config
	config.AllowAtomicPublish = true // jetstream.KeyValueConfig has no field for it
	_, err = js.UpdateStream(ctx, config)
	return err
}

// Once a later holder has opened the fence, a holder that has lost its lock can neither
// open the fence nor write through it. Tokens rise from one lock to the next.
func ExampleOpen() {
	ctx := context.Background()
	nc, js, stop := start()
	defer stop()
	locks, err := natslock.New(ctx, nc)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)

	err = locks.Do(ctx, "orders", func(ctx context.Context, l *natslock.Lock) error {
		f, err := fence.Open(ctx, js, "ORDERS", "orders.fence", l.Token())
		if err != nil {
			return err
		}
		// Read what you are going to change only now that the fence is open, and then write.
		_, err = f.Publish(ctx, "orders.created", []byte("order 1"))
		return err
	})
	fmt.Println(err)

	_, err = fence.Open(ctx, js, "ORDERS", "orders.fence", 5) // an old token
	fmt.Println(errors.Is(err, fence.ErrSuperseded))
	// Output:
	// <nil>
	// true
}

func ExampleFence_Publish() {
	ctx := context.Background()
	_, js, stop := start()
	defer stop()

	paused, err := fence.Open(ctx, js, "ORDERS", "orders.fence", 100)
	if err != nil {
		log.Fatal(err)
	}
	next, err := fence.Open(ctx, js, "ORDERS", "orders.fence", 101)
	if err != nil {
		log.Fatal(err)
	}
	_, err = next.Publish(ctx, "orders.created", []byte("order 1"))
	fmt.Println("the next holder:", err)
	_, err = paused.Publish(ctx, "orders.created", []byte("order 1, stale"))
	fmt.Println("the paused holder is refused:", errors.Is(err, fence.ErrSuperseded))
	// Output:
	// the next holder: <nil>
	// the paused holder is refused: true
}

func ExampleFence_PublishMsg() {
	ctx := context.Background()
	_, js, stop := start()
	defer stop()
	f, err := fence.Open(ctx, js, "ORDERS", "orders.fence", 100)
	if err != nil {
		log.Fatal(err)
	}

	// A message with an ID can safely be published again if no response arrives.
	order := &nats.Msg{Subject: "orders.created", Data: []byte("order 1"), Header: nats.Header{"Nats-Msg-Id": {"order-1"}}}
	for range 2 {
		ack, err := f.PublishMsg(ctx, order)
		fmt.Println(ack.Duplicate, err)
	}
	// Output:
	// false <nil>
	// true <nil>
}

func ExampleFence_PublishBatch() {
	ctx := context.Background()
	_, js, stop := start()
	defer stop()
	f, err := fence.Open(ctx, js, "ORDERS", "orders.fence", 100)
	if err != nil {
		log.Fatal(err)
	}

	_, err = f.PublishBatch(ctx,
		&nats.Msg{Subject: "orders.created", Data: []byte("order 1")},
		&nats.Msg{Subject: "orders.paid", Data: []byte("order 1")},
	)
	fmt.Println("both or none:", err)
	// Output: both or none: <nil>
}

func ExampleFence_Err() {
	ctx := context.Background()
	_, js, stop := start()
	defer stop()
	f, err := fence.Open(ctx, js, "ORDERS", "orders.fence", 100)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := fence.Open(ctx, js, "ORDERS", "orders.fence", 101); err != nil {
		log.Fatal(err)
	}

	fmt.Println("before a write:", f.Err())
	_, _ = f.Publish(ctx, "orders.created", []byte("stale"))
	fmt.Println("after it:", errors.Is(f.Err(), fence.ErrSuperseded))
	// Output:
	// before a write: <nil>
	// after it: true
}

// bucket opens a fence on the bucket named settings.
func bucket(js jetstream.JetStream, token uint64) (kv *fence.KV) {
	f, err := fence.Open(context.Background(), js, "KV_settings", "$KV.settings.fence", token)
	if err != nil {
		log.Fatal(err)
	}
	if kv, err = f.KV("settings"); err != nil {
		log.Fatal(err)
	}
	return kv
}

func ExampleFence_KV() {
	ctx := context.Background()
	_, js, stop := start()
	defer stop()
	f, err := fence.Open(ctx, js, "KV_settings", "$KV.settings.fence", 100)
	if err != nil {
		log.Fatal(err)
	}

	kv, err := f.KV("settings")
	if err != nil {
		log.Fatal(err)
	}
	_, err = kv.Put(ctx, "color", []byte("blue"))
	fmt.Println(err)
	// Output: <nil>
}

func ExampleKV_Put() {
	ctx := context.Background()
	_, js, stop := start()
	defer stop()

	paused, next := bucket(js, 100), bucket(js, 101)
	_, err := next.Put(ctx, "color", []byte("blue"))
	fmt.Println(err)
	_, err = paused.Put(ctx, "color", []byte("red"))
	fmt.Println(errors.Is(err, fence.ErrSuperseded))
	// Output:
	// <nil>
	// true
}

func ExampleKV_Delete() {
	_, js, stop := start()
	defer stop()

	fmt.Println(bucket(js, 100).Delete(context.Background(), "color"))
	// Output: <nil>
}

func ExampleKV_Create() {
	ctx := context.Background()
	_, js, stop := start()
	defer stop()

	kv := bucket(js, 100)
	for range 2 {
		_, err := kv.Create(ctx, "color", []byte("blue"))
		fmt.Println(errors.Is(err, jetstream.ErrKeyExists))
	}
	// Output:
	// false
	// true
}

// A daily job pays each account once, even though its first run crashes halfway and other
// runs may be active.
func ExampleKV_Create_payout() {
	ctx := context.Background()
	nc, js, stop := start()
	defer stop()
	if err := newBucket(ctx, js, "payouts"); err != nil {
		log.Fatal(err)
	}
	locks, err := natslock.New(ctx, nc)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
	day := "2026-11-28"
	for _, accounts := range [][]string{{"anna", "not a key"}, {"anna", "bert"}, {"anna", "bert"}} {
		err = locks.Once(ctx, "payout."+day, 48*time.Hour, func(ctx context.Context, _ *natslock.Lock) error {
			return locks.Do(ctx, "payout", func(ctx context.Context, l *natslock.Lock) error { // one day at a time
				f, err := fence.Open(ctx, js, "KV_payouts", "$KV.payouts.fence", l.Token())
				if err != nil {
					return err
				}
				kv, err := f.KV("payouts")
				if err != nil {
					return err
				}
				for _, account := range accounts {
					_, err := kv.Create(ctx, day+"."+account, []byte("pay"))
					if err != nil && !errors.Is(err, jetstream.ErrKeyExists) { // an earlier run has created it
						return err
					}
				}
				return nil
			}, natslock.MaxWait(time.Minute)) // on a timeout, the next call tries again
		})
		fmt.Println(err == nil, errors.Is(err, natslock.ErrDone))
	}
	info, err := js.Stream(ctx, "KV_payouts")
	if err != nil {
		log.Fatal(err)
	}
	orders, err := info.Info(ctx, jetstream.WithSubjectFilter("$KV.payouts."+day+".*"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(orders.State.Subjects)
	// Output:
	// false false
	// true false
	// false true
	// map[$KV.payouts.2026-11-28.anna:1 $KV.payouts.2026-11-28.bert:1]
}

func ExampleKV_Update() {
	ctx := context.Background()
	_, js, stop := start()
	defer stop()

	kv := bucket(js, 100)
	revision, err := kv.Create(ctx, "color", []byte("blue"))
	if err != nil {
		log.Fatal(err)
	}
	_, err = kv.Update(ctx, "color", []byte("green"), revision)
	fmt.Println(err)
	_, err = kv.Update(ctx, "color", []byte("red"), revision)
	fmt.Println(errors.Is(err, jetstream.ErrKeyExists))
	// Output:
	// <nil>
	// true
}

// A resource outside NATS remembers the greatest token it has seen.
func ExampleCheck() {
	var greatest uint64
	for _, token := range []uint64{100, 101, 100} {
		err := fence.Check(greatest, token)
		if err == nil {
			greatest = token
		}
		fmt.Println(token, errors.Is(err, fence.ErrSuperseded))
	}
	// Output:
	// 100 false
	// 101 false
	// 100 true
}
