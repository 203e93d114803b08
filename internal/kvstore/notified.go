package kvstore

import "time"

// Nothing tells a client that it is not receiving notifications. If the server denies a
// subscription, or an account does not import it, the subscription is simply silent. But a
// client that watches a key is also notified of its own writes to that key, so the store warns
// if no such notification arrives.

const (
	// silences is the number of acknowledged writes without a notification after
	// which the store warns.
	silences = 3
	// silentFor is how long the store waits to be notified of the last of these writes. Behind
	// a gateway, notifications take a different route from acknowledgments, and the first
	// notifications may be missed because the subscription is not yet in place there.
	silentFor = time.Second
)

// unnotified counts an acknowledged write to a key that was already watched when the write was
// sent. The store warns about missing notifications once, on the first write that comes more
// than silentFor after the last counted write.
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
			"and a holder learns of a break only at its next renewal. Repair: allow the user to subscribe to these subjects, and let the account import them under their own names",
			"bucket", s.cfg.Bucket, "subjects", s.seen.Load().notify+">")
	}
}
