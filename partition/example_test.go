package partition_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/verify/example"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/partition"
)

// A worker processes the messages of its partitions, and leaves when its service stops.
func ExampleGroup_Run() {
	ctx, stop := context.WithCancel(context.Background())
	locks, done := example.Client()
	defer done()

	orders := make(chan string, 1)
	orders <- "an order"
	messages := func(int) <-chan string { return orders }
	process := func(_ context.Context, token uint64, m string) error {
		fmt.Println("processes", m, token > 0)
		stop() // a service stops on a signal
		return nil
	}
	g := partition.New(locks, "ingest", 64, partition.Drain(5*time.Second))
	err := g.Run(ctx, func(ctx context.Context, p *partition.Partition) error {
		work := messages(p.Number())
		for {
			select {
			case m := <-work:
				if err := process(ctx, p.Token(), m); err != nil {
					return err
				}
			case <-p.Leaving(): // another worker takes over
				return nil
			case <-ctx.Done(): // lost
				return context.Cause(ctx)
			}
		}
	})
	fmt.Println("stopped:", errors.Is(err, context.Canceled))
	// Output:
	// processes an order true
	// stopped: true
}

// A worker in a StatefulSet pod keeps its ID when the pod restarts.
func ExampleNew() {
	locks, done := example.Client()
	defer done()
	g := partition.New(locks, "ingest", 64, partition.ID("pod-1"), partition.Weight(2), partition.TTL(30*time.Second))
	fmt.Println(g.ID(), len(g.Owned()))
	// Output: pod-1 0
}

// started runs a worker and returns when it owns all three partitions of its group.
func started(opts ...partition.Option) (g *partition.Group, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	locks, done := example.Client()
	owned, ended := make(chan struct{}, 3), make(chan struct{})
	g = partition.New(locks, "ingest", 3, append([]partition.Option{partition.ID("pod-1")}, opts...)...)
	go func() {
		defer close(ended)
		_ = g.Run(ctx, func(ctx context.Context, p *partition.Partition) error {
			owned <- struct{}{}
			return until(ctx, p)
		})
	}()
	for range 3 {
		<-owned
	}
	return g, func() {
		cancel()
		<-ended
		done()
	}
}

func ExampleGroup_Owned() {
	g, stop := started()
	defer stop()
	fmt.Println(g.Owned())
	// Output: [0 1 2]
}

func ExampleGroup_Plan() {
	g, stop := started()
	defer stop()
	fmt.Println(g.Plan())
	// Output: [pod-1 pod-1 pod-1]
}

func ExampleGroup_Members() {
	g, stop := started(partition.Weight(2), partition.Meta(map[string]string{"address": "10.0.0.7"}))
	defer stop()
	for _, m := range g.Members() {
		fmt.Println(m.ID, m.Weight, m.Meta["address"])
	}
	// Output: pod-1 2 10.0.0.7
}

func ExampleGroup_Stats() {
	g, stop := started()
	defer stop()
	s := g.Stats()
	fmt.Println(s.Members, s.Owned, s.Granted)
	// Output: 1 3 3
}

func ExampleGroup_Name() {
	g, stop := started()
	defer stop()
	fmt.Println(g.Name())
	// Output: ingest
}

func ExampleGroup_ID() {
	g, stop := started()
	defer stop()
	fmt.Println(g.ID())
	// Output: pod-1
}

// An operator inspects a group from outside.
func ExampleInspect() {
	ctx, stop := context.WithCancel(context.Background())
	locks, done := example.Client()
	defer done()
	owned, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		g := partition.New(locks, "ingest", 1, partition.ID("pod-1"))
		_ = g.Run(ctx, func(ctx context.Context, p *partition.Partition) error {
			close(owned)
			return until(ctx, p)
		})
	}()
	<-owned
	state, err := partition.Inspect(ctx, locks, "ingest")
	fmt.Println(state.Count, state.Partitions[0].Member, state.Partitions[0].Planned, err)
	stop()
	<-ended
	// Output: 1 pod-1 pod-1 <nil>
}

// A tool finds the groups in a list of locks.
func ExampleGroups() {
	g, stop := started()
	defer stop()
	locks := []admin.Info{{Kind: admin.KindMutex, Name: "orders"}} // as returned by admin.Admin.List
	for _, m := range g.Members() {
		locks = append(locks, admin.Info{Kind: admin.KindMutex, Name: "ingest.member." + m.ID, Holder: &admin.Holder{
			Holder: natslock.Holder{Token: m.Token, Meta: map[string]string{"member": m.ID, "weight": "1", "partitions": "3"}},
		}})
	}
	for _, state := range partition.Groups(locks) {
		fmt.Println(state.Group, state.Count, state.Members[0].ID)
	}
	// Output: ingest 3 pod-1
}
