package call

import (
	"fmt"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

var errInvalidTTL = clock.ErrInvalidTTL

// Request says what to acquire and how.
type Request struct {
	Kind     record.Kind
	Mode     record.Mode
	Name     string
	TTL      time.Duration     // 0: the client's
	Until    time.Time         // when set: a lease that ends then and is never renewed
	Fixed    bool              // not renewed by itself
	MaxWait  time.Duration     // 0: as long as the context
	Meta     map[string]string // shown to operators
	Detached bool              // the lease's context does not end with the caller's
	Once     bool              // do not wait
	Patient  bool              // pass no other client, and show Meta in the lease only
	Linger   time.Duration     // keep the lease so long for the next goroutine; 0: do not
	MinHold  time.Duration     // keep others out so long at least; 0: as long as it is held
	Permits  int               // of a semaphore
	Purpose  record.Purpose    // shown to operators

	WarnBefore time.Duration // 0: no early warning
	OnWarn     func()
}

// checkPermits checks what only a semaphore has, and what it cannot have.
func checkPermits(req Request) error {
	switch {
	case req.Kind != record.Semaphore:
		return nil
	case req.Permits < 1 || req.Permits > record.MaxPermits:
		return fmt.Errorf("semaphore %q: %w: %d permits, it can have 1 to %d", req.Name, record.ErrInvalidOption, req.Permits, record.MaxPermits)
	case req.Linger > 0:
		return fmt.Errorf("semaphore %q: %w: a permit cannot linger", req.Name, record.ErrInvalidOption)
	}
	return nil
}
