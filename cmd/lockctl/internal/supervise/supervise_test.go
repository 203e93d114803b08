package supervise

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOrders checks the times in the guard's orders. While lockctl renews the lock, new orders
// arrive before the old ones are due. Once lockctl has stopped, the group gets TERM and is dead a
// margin before the lock's validity ends. If too little time is left for that, lockctl sends the
// signals itself.
func TestOrders(t *testing.T) {
	t.Parallel()
	const second = instant(time.Second)
	for _, c := range []struct {
		ttl, killAfter time.Duration
		at, end        instant // end of the validity, which lasts a margin less than the TTL after a renewal
		term, kill     instant
	}{
		{15 * time.Second, 5 * time.Second, 0, 14 * second, 10 * second, 13 * second},
		{15 * time.Second, time.Second, 0, 14 * second, 12 * second, 13 * second},
		{15 * time.Second, 0, 0, 14 * second, 13 * second, 13 * second},
		{5 * time.Second, 5 * time.Second, 0, 45 * second / 10, 3 * second, 4 * second},
		{5 * time.Second, 5 * time.Second, 2 * second, 45 * second / 10, 3 * second, 4 * second},
		{5 * time.Second, 5 * time.Second, 2*second + 1, 45 * second / 10, 475 * second / 100, 475 * second / 100},
		{4100 * time.Millisecond, 5 * time.Second, 0, 45 * second / 10, 3 * second, 4 * second}, // the server's lease is 5 s
	} {
		w := New(nil, c.ttl, c.killAfter)
		require.Equal(t, orders{c.term, c.kill, c.killAfter}, w.orders(c.at, c.end), "%+v", c)
	}
}
