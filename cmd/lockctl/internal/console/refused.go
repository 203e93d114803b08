package console

import (
	"sync"
	"time"

	"github.com/natslock/locks/internal/tool"
)

// refusalDelay is how long a refusal waits for an error of lockctl that names it.
const refusalDelay = time.Second

// Refusals are the server's refusals that no error of lockctl has named yet. Each is
// printed once. Most refusals end the command, whose error says the same. If the command
// goes on, they are printed a moment later.
type Refusals struct {
	complain func(format string, args ...any)

	mu      sync.Mutex
	seen    map[string]bool
	pending []string
}

// Add records an error of the connection.
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

// end prints the remaining refusals when lockctl ends with err.
func (r *Refusals) end(err error) {
	if err != nil && tool.CodeOf(err) == tool.ExitPermission {
		r.mu.Lock()
		r.pending = nil // err names at least one of them
		r.mu.Unlock()
	}
	r.print()
}
