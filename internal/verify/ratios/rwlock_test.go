package ratios_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
)

// BenchmarkJoin compares a reader's join and leave, with 1, 10 and 100 others already in,
// with two bare publishes. The reader's client reads nothing else, so it has to write a
// lease of its own.
func BenchmarkJoin(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			url := Server(b)
			for i := range n {
				// Each reader has its own client, because one client's readers share a
				// lease.
				l, err := speedReader(b, url, i).RLock(b.Context(), "join")
				require.NoError(b, err)
				defer func() { require.NoError(b, l.Unlock(context.Background())) }()
			}
			rw := speedReader(b, url, n)
			p := NewPublisher(Connect(b, url), "bare")
			Beside(b, func() {
				l, err := rw.RLock(context.Background(), "join")
				if err != nil {
					b.Fatal(err)
				}
				if err := l.Unlock(context.Background()); err != nil {
					b.Fatal(err)
				}
			}, func() { p.Cycle(b) })
		})
	}
}

func speedReader(b *testing.B, url string, i int) *rwlock.RWLock {
	b.Helper()
	c, err := natslock.New(b.Context(), Connect(b, url), natslock.WithOwner(fmt.Sprint("reader ", i)))
	require.NoError(b, err)
	b.Cleanup(func() { _ = c.Close(context.Background()) })
	return rwlock.New(c)
}
