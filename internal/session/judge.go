package session

import (
	"strings"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// Judge returns for each of the client's leases under a name how to end it by what change
// makes of its record. change gets the key of the lease and returns what is under it
// afterwards: a record or a tombstone of another claim, a broken record, or nothing. The
// lease has ended then. Without Judge a notification or a renewal would show the client the
// change. The lease of a writer that waits for readers is none: nobody is inside.
func (s *Session) Judge(name string) (ends []func(change func(key string) kvstore.Record)) {
	s.renewer.held(func(k *kept) {
		if l, ok := k.of.(*Lease); ok && k.Name == name && (l.holders != nil || l.use.Idle) {
			ends = append(ends, l.endBy)
		}
	})
	return ends
}

func (l *Lease) endBy(change func(key string) kvstore.Record) {
	ended := make(chan struct{})
	if !l.OnEnd(func() { close(ended) }) {
		return
	}
	r := change(l.Key)
	l.judge(record.Of(r), r.Revision)
	<-ended // a renewal may have found the change at the same time
}

// Places returns how many places the client has in the queue of a lock.
func (s *Session) Places(keys record.Keys) (n int) {
	s.renewer.held(func(k *kept) {
		if strings.HasPrefix(k.Key, keys.Place("")) {
			n++
		}
	})
	return n
}
