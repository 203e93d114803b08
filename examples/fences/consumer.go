package fences

import (
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/fence"
)

// TokenHeader has the token of the holder that has sent a message or a request.
const TokenHeader = "Fencing-Token"

// Newest drops what stale holders have sent. Use one for each lock, and put the zero value
// to use. It remembers the greatest token in memory. A consumer that starts again has to
// read the stream from a message of the newest holder on. Or it stores the token with its
// results.
type Newest struct {
	mu       sync.Mutex
	greatest uint64
}

// Apply calls fn unless the token is smaller than one before. No other call runs
// meanwhile, so that a newer holder's message cannot pass an older one that is being
// applied. The error matches [fence.ErrSuperseded] if the token is smaller, or is fn's.
func (n *Newest) Apply(token uint64, fn func() error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := fence.Check(n.greatest, token); err != nil {
		return err
	}
	n.greatest = token
	return fn()
}

// ApplyMsg is Apply for a message with a [TokenHeader]. A message without one is refused.
func (n *Newest) ApplyMsg(m *nats.Msg, fn func() error) error {
	token, err := strconv.ParseUint(m.Header.Get(TokenHeader), 10, 64)
	if err != nil {
		return err
	}
	return n.Apply(token, fn)
}
