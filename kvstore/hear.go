package kvstore

import "time"

// Nobody tells a client that notifications do not reach it: a subscription that
// is forbidden, or that an account does not import, looks like a quiet one. But a
// client that watches a key hears of its own writes to it. When it never does,
// somebody should know.

const (
	// silences is how many acknowledged writes have to go unheard.
	silences = 3
	// silentFor is how long the first of them has to be ago: a notification may
	// come behind the acknowledgement.
	silentFor = time.Second
)

// watched says whether a write to key should be heard of, in a store that has not
// heard of any.
func (s *Store) watched(key string) bool {
	if s.heard.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.topics) > 0 && s.topics[s.seen.Load().notify+key] != nil
}

// unheard counts an acknowledged write to a watched key and says once, when there
// were some, that notifications do not arrive.
func (s *Store) unheard() {
	s.mu.Lock()
	if s.silence++; s.silence == 1 {
		s.silentAt = time.Now()
	}
	tell := s.silence >= silences && time.Since(s.silentAt) > silentFor && !s.heard.Swap(true)
	s.mu.Unlock()
	if tell {
		s.cfg.Logger.Warn("lock bucket: no notification of a change has ever arrived: waiters look by themselves every few seconds, "+
			"a broken holder is told at its next renewal; repair: let the user subscribe to these subjects, and the account import them under their own name",
			"bucket", s.cfg.Bucket, "subjects", s.seen.Load().notify+">")
	}
}
