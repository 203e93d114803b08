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
	TTL      time.Duration     // 0 means the client's TTL
	Until    time.Time         // if set, the lease ends then and is never renewed
	Fixed    bool              // the client does not renew the lease
	MaxWait  time.Duration     // 0 means that only the context limits the wait
	Meta     map[string]string // shown to operators
	Detached bool              // the lease's context does not end with the caller's
	Once     bool              // do not wait
	Patient  bool              // never overtake another client, and show Meta only in the lease
	Linger   time.Duration     // how long to keep the lease for the client's next goroutine; 0 not to keep it
	MinHold  time.Duration     // the minimum time to keep others out; 0 for none
	Permits  int               // semaphores only
	Purpose  record.Purpose    // shown to operators

	WarnBefore time.Duration // 0 for no early warning
	OnWarn     func()
}

// checkPermits validates the options of a semaphore, which needs a number of permits and cannot linger.
func checkPermits(req Request) error {
	switch {
	case req.Kind != record.Semaphore:
		return nil
	case req.Permits < 1 || req.Permits > record.MaxPermits:
		return fmt.Errorf("semaphore %q: %w: %d permits; must be 1 to %d", req.Name, record.ErrInvalidOption, req.Permits, record.MaxPermits)
	case req.Linger > 0:
		return fmt.Errorf("semaphore %q: %w: a permit cannot linger", req.Name, record.ErrInvalidOption)
	}
	return nil
}
