// Package admin reads, watches and breaks the locks of all clients, for operators. It also extends
// and releases a lock for a process that has only the lock's handle.
package admin

import (
	"context"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/session"
)

// Admin reads and changes the locks of all clients in a bucket.
type Admin struct {
	b *bucket.Bucket
	s *session.Session
}

// New returns an Admin for the bucket of a session.
func New(b *bucket.Bucket, s *session.Session) *Admin { return &Admin{b: b, s: s} }

// Life returns a context that lasts as long as the client.
func (a *Admin) Life() context.Context { return a.b.Life() }
