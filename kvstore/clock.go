package kvstore

import "time"

// Now estimates the servers' wall clock; see [KV].
func (s *Store) Now() time.Time { return time.Now().Add(time.Duration(s.ahead.Load())) }

// clockRead notes what an answer said of the server's wall clock. The answer has
// travelled since, so the estimate is late by its way at most.
func (s *Store) clockRead(server time.Time) {
	if !server.IsZero() {
		s.ahead.Store(int64(server.Round(0).Sub(time.Now().Round(0))))
	}
}
