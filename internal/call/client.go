package call

import (
	"context"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/session"
)

// Client is what a client's calls share.
type Client struct {
	b       *bucket.Bucket
	s       *session.Session
	lingers bool
}

// NewClient returns what a client's calls share. lingers is true if the client keeps idle leases at all.
func NewClient(b *bucket.Bucket, s *session.Session, lingers bool) *Client {
	return &Client{b: b, s: s, lingers: lingers}
}

// AsOf returns the current time, and a revision that a list requested from now on has to contain: the server that
// answers the list may not be the leader, and may lag.
func (c *Client) AsOf(ctx context.Context) (at clock.Instant, revision uint64, err error) {
	b := c.b
	at = b.Instant()
	if !b.Alone() { //safety:silence-of-leader
		var st kvstore.State
		st, err = b.Leader(ctx, bucket.AnswerTimeout)
		revision = st.LastRevision
	}
	return at, revision, err
}
