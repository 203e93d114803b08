package fences

import (
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/fence"
)

// TokenHeader carries the token of the holder that sent a message or a request.
const TokenHeader = "Fencing-Token"

// Newest discards whatever stale holders send. Use one Newest for each lock; the zero value
// is ready to use. It keeps the highest token in memory, so a restarted consumer has to
// read the stream again, starting from a message of the newest holder, or store the token
// with its results.
type Newest struct {
	mu       sync.Mutex
	greatest uint64
}

// Apply calls fn unless the token is lower than one that came before it. Calls run one at a
// time, so a newer holder's message cannot overtake an older one that is being applied. The
// error matches [fence.ErrSuperseded] if the token is lower, and is fn's otherwise.
func (n *Newest) Apply(token uint64, fn func() error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := fence.Check(n.greatest, token); err != nil {
		return err
	}
	n.greatest = token
	return fn()
}

// ApplyMsg is Apply for a message with a [TokenHeader]. It refuses a message without one.
func (n *Newest) ApplyMsg(m *nats.Msg, fn func() error) error {
	token, err := strconv.ParseUint(m.Header.Get(TokenHeader), 10, 64)
	if err != nil {
		return err
	}
	return n.Apply(token, fn)
}
