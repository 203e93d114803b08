package call

import (
	"fmt"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

var errInvalidTTL = clock.ErrInvalidTTL

// Request describes what to acquire and how.
type Request struct {
	Kind     record.Kind
	Mode     record.Mode
	Name     string
	TTL      time.Duration     // 0 for the client's
	Until    time.Time         // if set: a lease that ends then and is never renewed
	Fixed    bool              // not renewed by the client
	MaxWait  time.Duration     // 0 if only the context limits it
	Meta     map[string]string // shown to operators
	Detached bool              // the lease's context does not end with the caller's
	Once     bool              // do not wait
	Patient  bool              // pass no other client, and show Meta in the lease only
	Linger   time.Duration     // the time for which to keep the lease for the next goroutine; 0 not to keep it
	MinHold  time.Duration     // the shortest time for which to keep others out; 0 if there is none
	Permits  int               // for a semaphore
	Purpose  record.Purpose    // shown to operators

	WarnBefore time.Duration // 0 for no early warning
	OnWarn     func()
}

// checkPermits checks the options that only a semaphore has, and those that it cannot have.
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
