package kvstore

// PassMany lets a store behind an API prefix ask for many records at once, for
// tests whose prefix passes more than one answer.
func (s *Store) PassMany() { s.multiOff.Store(false) }
