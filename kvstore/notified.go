package kvstore

import "time"

// No message says that notifications do not reach a client. A subscription that the
// server forbids, or that an account does not import, is merely silent. But a client
// that watches a key receives notifications of its own writes to it. If none arrives,
// the store warns.

const (
	// silences is the number of acknowledged writes without a notification after
	// which the store warns.
	silences = 3
	// silentFor is the least age of the first of them: a notification may arrive
	// after the acknowledgement.
	silentFor = time.Second
)

// watched says whether a write to key should cause a notification, in a store that has
// received none.
func (s *Store) watched(key string) bool {
	if s.notified.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.topics) > 0 && s.topics[s.seen.Load().notify+key] != nil
}

// unnotified counts an acknowledged write to a watched key. After some of them it warns
// once that notifications do not arrive.
func (s *Store) unnotified() {
	s.mu.Lock()
	if s.silence++; s.silence == 1 {
		s.silentAt = time.Now()
	}
	warn := s.silence >= silences && time.Since(s.silentAt) > silentFor && !s.notified.Swap(true)
	s.mu.Unlock()
	if warn {
		s.cfg.Logger.Warn("lock bucket: no notification of a change has ever arrived. Waiters poll every few seconds, "+
			"and a broken holder learns of it at its next renewal. Repair: let the user subscribe to these subjects, and the account import them under their own name",
			"bucket", s.cfg.Bucket, "subjects", s.seen.Load().notify+">")
	}
}
