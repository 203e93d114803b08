package console

import (
	"sync"
	"time"

	"github.com/natslock/locks/internal/tool"
)

// refusalDelay is how long to wait, before printing a refusal, for lockctl to fail with an
// error that says the same thing.
const refusalDelay = time.Second

// Refusals collects the server's refusals and prints each of them once. Most refusals make the
// command fail with an error that says the same thing, so they are printed only after a delay,
// and not at all if lockctl ends with such an error.
type Refusals struct {
	complain func(format string, args ...any)

	mu      sync.Mutex
	seen    map[string]bool
	pending []string
}

// Add records a refusal that has arrived on the connection.
func (r *Refusals) Add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen[err.Error()] {
		return
	}
	if r.seen == nil {
		r.seen = make(map[string]bool)
	}
	r.seen[err.Error()] = true
	r.pending = append(r.pending, err.Error())
	if len(r.pending) == 1 {
		time.AfterFunc(refusalDelay, r.print)
	}
}

func (r *Refusals) print() {
	r.mu.Lock()
	pending := r.pending
	r.pending = nil
	r.mu.Unlock()
	for _, text := range pending {
		r.complain("%s", text)
	}
}

// end prints the remaining refusals, unless lockctl ends with an error that says the same
// thing.
func (r *Refusals) end(err error) {
	if err != nil && tool.CodeOf(err) == tool.ExitPermission {
		r.mu.Lock()
		r.pending = nil // err names at least one of them
		r.mu.Unlock()
	}
	r.print()
}
