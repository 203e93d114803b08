package acquire

import (
	"context"

	"github.com/natslock/locks/internal/record"
)

// Queue lists the queue of a mutex, from a revision on.
func (c *Client) Queue(ctx context.Context, name string, from uint64) ([]record.Entry, error) {
	return c.lists.queue(ctx, record.KeysOf(record.Mutex, name).Place("*"), 0, from)
}
