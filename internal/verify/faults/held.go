package faults

import "github.com/natslock/locks/internal/kvstore"

// HeldWrite is a write that met the fate [Hold].
type HeldWrite struct {
	// N is the write's number, as passed to the rule that held it.
	N int
	// Write is the write itself.
	Write kvstore.Write

	f    *Store
	done func(kvstore.Answer)
}

// Release sends the write to the server now and reports whether it did. It returns false if the
// write was already released or dropped, if the store is closed, or if the store refused to
// send it.
func (h *HeldWrite) Release() bool {
	if !h.take() {
		return false
	}
	sent := false
	h.f.call(func() {
		h.f.count(&h.f.counts.Released)
		_, err := h.f.wrapped.Send(h.Write, h.done)
		sent = err == nil
	})
	return sent
}

// Drop drops the write, so that it never reaches the server.
func (h *HeldWrite) Drop() { h.take() }

// take removes the write from the held writes, and reports whether it was among them.
func (h *HeldWrite) take() bool {
	h.f.mu.Lock()
	defer h.f.mu.Unlock()
	for i, o := range h.f.held {
		if o == h {
			h.f.held = append(h.f.held[:i:i], h.f.held[i+1:]...)
			return true
		}
	}
	return false
}

// Held returns the writes being held, oldest first.
func (f *Store) Held() []*HeldWrite {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*HeldWrite(nil), f.held...)
}

// ReleaseHeld sends all held writes to the server, in the order in which they were held, and
// returns how many it sent.
func (f *Store) ReleaseHeld() int {
	n := 0
	for _, h := range f.Held() {
		if h.Release() {
			n++
		}
	}
	return n
}
