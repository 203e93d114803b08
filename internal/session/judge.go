package session

import (
	"strings"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// Judge returns a function for each of the client's leases under a name, which ends that
// lease at once. Its argument, change, gets the key of the lease, changes the record there,
// and returns what is there now: a record or a tombstone of another claim, a broken record,
// or nothing. Otherwise the client would learn of the change by a notification or a renewal.
// The lease of a writer that waits for readers does not count: nobody is inside.
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
