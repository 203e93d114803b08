package kvstore

import "time"

// No message tells a client that it receives no notifications. A subscription that the server
// forbids, or that an account does not import, is merely silent. But a client that watches a key
// receives notifications of its own writes to it. If none arrives, the store warns.

const (
	// silences is the number of acknowledged writes without a notification after
	// which the store warns.
	silences = 3
	// silentFor is the time allowed for the notification of the last of them. Behind a gateway it
	// takes another route than the acknowledgement, and the first ones may be missed because the
	// subscription was not yet in place there.
	silentFor = time.Second
)

// unnotified counts the acknowledgement of a write to a key that was watched when the write was
// sent. The store warns once about missing notifications, at the first write that follows the last
// counted one by more than silentFor.
func (s *watcher) unnotified(w sentWrite) {
	if s.notified.Load() {
		return
	}
	s.mu.Lock()
	var t *topic
	if len(s.topics) > 0 {
		t = s.topics[s.seen.Load().notify+w.key]
	}
	if t == nil || w.at < t.since {
		s.mu.Unlock()
		return
	}
	warn := s.silence == silences && time.Since(s.silentAt) > silentFor && !s.notified.Swap(true)
	if s.silence < silences {
		s.silence++
		s.silentAt = time.Now()
	}
	s.mu.Unlock()
	if warn {
		s.cfg.Logger.Warn("lock bucket: no notification of a change has ever arrived. Waiters poll every few seconds, "+
			"and a broken holder learns of it at its next renewal. Repair: let the user subscribe to these subjects, and the account import them under their own name",
			"bucket", s.cfg.Bucket, "subjects", s.seen.Load().notify+">")
	}
}
