package call

import (
	"context"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/session"
)

// Client holds the state that all calls of one client share.
type Client struct {
	b       *bucket.Bucket
	s       *session.Session
	lingers bool
}

// NewClient returns the shared state for a client's calls. lingers is true if the client keeps idle leases at all.
func NewClient(b *bucket.Bucket, s *session.Session, lingers bool) *Client {
	return &Client{b: b, s: s, lingers: lingers}
}

// AsOf returns the current time and a revision that every list requested from now on must contain, because the server
// that answers a list may be a lagging replica. The revision is 0 if no replica can lag.
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
