package kvstore

import "time"

// MaxTTL is the longest TTL.
const MaxTTL = maxTTL

// FirstSeq returns the first sequence of a bucket created at the given time.
func FirstSeq(at time.Time) uint64 { return firstSeq(at) }

// LowFirstSeq separates first sequences that encode a time from all others.
const LowFirstSeq = lowFirstSeq

// Created returns when the bucket was created, as of the last read.
func (s *Store) Created() time.Time { return s.seen.Load().created }

// Warnings returns what is worth repairing in the bucket, as of the last read.
func (s *Store) Warnings() []string { return s.seen.Load().warnings }

// Notifications returns the subject prefix under which the bucket republishes its keys.
func (s *Store) Notifications() string { return s.seen.Load().notify }

// OnSender makes the sender run fn as if it were a call into the connection.
func (s *Store) OnSender(fn func()) { s.calls.Add(fn) }

// AwaitPending waits until a write is waiting for its reply.
func (s *Store) AwaitPending() {
	for n := 0; n == 0; time.Sleep(time.Millisecond) {
		s.inFlight.mu.Lock()
		n = len(s.pending)
		s.inFlight.mu.Unlock()
	}
}

// PassMany lets a store behind an API prefix request many records at once, for tests
// whose prefix passes more than one reply.
func (s *Store) PassMany() { s.imported = false }

// RefuseLeader tells a store that its user may not ask the leader for records.
func (s *Store) RefuseLeader() { s.leaderOff.Store(true) }

// Replicated makes a store treat its bucket as replicated.
func (s *Store) Replicated() {
	seen := *s.seen.Load()
	seen.alone = false
	s.seen.Store(&seen)
}

// Records returns the number of records in a Memory, including those that have ended.
func (m *Memory) Records() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.records)
}

// HoldHooks makes a Close wait between its first step and its last until release is
// called.
func (s *Store) HoldHooks() (release func()) {
	s.hooks.mu.Lock()
	return s.hooks.mu.Unlock
}
