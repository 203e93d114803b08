package session

import (
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/kvstore"
)

// Judge ends the client's leases of a lock that are in use or idle, by what change makes of their records. change
// gets the key of a lease and returns what is under it afterwards: a record or a tombstone
// of another claim, a broken record, or nothing. Judge returns when the leases have ended.
// Otherwise a notification or a renewal would show the client the change.
func (s *Session) Judge(name string, change func(key string) kvstore.Record) {
	var leases []*Lease
	s.renewer.held(func(k *kept) {
		if l, ok := k.of.(*Lease); ok && k.Name == name && (l.holders != nil || l.idle) {
			leases = append(leases, l)
		}
	})
	for _, l := range leases {
		ended := make(chan struct{})
		if !l.OnEnd(func() { close(ended) }) {
			continue
		}
		r := change(l.Key)
		l.judge(record.Of(r), r.Revision)
		<-ended
	}
}
