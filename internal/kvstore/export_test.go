package kvstore

import "time"

// MaxTTL is the longest TTL.
const MaxTTL = maxTTL

// FirstSeq is the first sequence of a bucket that is made at a time.
func FirstSeq(at time.Time) uint64 { return firstSeq(at) }

// LowFirstSeq separates first sequences that are a time from others.
const LowFirstSeq = lowFirstSeq

// Created returns when the bucket was made, as it was read last.
func (s *Store) Created() time.Time { return s.seen.Load().created }

// Warnings returns what is worth repairing in the bucket, as it was read last.
func (s *Store) Warnings() []string { return s.seen.Load().warnings }

// Notifications is the prefix of the subjects to which the bucket copies its keys.
func (s *Store) Notifications() string { return s.seen.Load().notify }

// OnSender has the sender run fn, as a call into the connection.
func (s *Store) OnSender(fn func()) { s.calls.Add(fn) }

// AwaitPending waits until a write waits for its answer.
func (s *Store) AwaitPending() {
	for n := 0; n == 0; time.Sleep(time.Millisecond) {
		s.inFlight.mu.Lock()
		n = len(s.pending)
		s.inFlight.mu.Unlock()
	}
}

// PassMany lets a store behind an API prefix ask for many records at once, for
// tests whose prefix passes more than one answer.
func (s *Store) PassMany() { s.imported = false }

// RefuseLeader lets a store know that its user may not ask the leader for records.
func (s *Store) RefuseLeader() { s.leaderOff.Store(true) }

// Replicated lets a store take its bucket for one with replicas.
func (s *Store) Replicated() {
	seen := *s.seen.Load()
	seen.alone = false
	s.seen.Store(&seen)
}

// Records is how many records a Memory keeps, those that have ended too.
func (m *Memory) Records() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.records)
}

// HoldHooks has a Close wait between its first step and its last, until it is released.
func (s *Store) HoldHooks() (release func()) {
	s.hooks.mu.Lock()
	return s.hooks.mu.Unlock
}
