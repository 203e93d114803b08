package kvstore

// PassMany lets a store behind an API prefix ask for many records at once, for
// tests whose prefix passes more than one answer.
func (s *Store) PassMany() { s.multiOff.Store(false) }

// Replicated lets a store take its bucket for one with replicas.
func (s *Store) Replicated() {
	seen := *s.seen.Load()
	seen.alone = false
	s.seen.Store(&seen)
}
