package demo

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
)

// stage records which worker is inside the lock, and prints the events. It checks for mutual
// exclusion without consulting the lock.
type stage struct {
	out io.Writer

	// counter is protected only by the lock. Each worker reads it, works, and writes it back
	// incremented.
	counter int

	mu       sync.Mutex
	start    time.Time
	inside   *visit // nil if nobody is inside
	last     *visit // previous visit
	token    uint64 // greatest token so far
	grants   int
	counted  int // number of increments made
	overlaps int
	falls    int
	gaps     []time.Duration // times from one holder to the next
	failover time.Duration
}

// visit is one holder's stay inside the lock.
type visit struct {
	s     *stage
	name  string
	token uint64
	at    time.Time // time of the grant
	note  string    // remarks about the grant
	left  time.Time // when the holder began to unlock or was killed
	dead  bool
}

func newStage(out io.Writer) *stage { return &stage{out: out, start: time.Now()} }

var palette = []text.Colors{{text.FgYellow}, {text.FgBlue}, {text.FgRed}, {text.FgGreen}}

// say prints a line about a worker or the operator, with the time since the start.
func (s *stage) say(name, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lineLocked(time.Now(), name, format, args...)
}

func (s *stage) lineLocked(at time.Time, name, format string, args ...any) {
	label := fmt.Sprintf("%-8s", name)
	for i, w := range demoWorkers {
		if w == name {
			label = palette[i%len(palette)].Sprint(label)
		}
	}
	if name == "victim" || name == "operator" {
		label = show.Bold.Sprint(label)
	}
	stamp := show.Faint.Sprintf("%7.3fs", at.Sub(s.start).Seconds())
	fmt.Fprintf(s.out, "%s  %s  %s\n", stamp, label, fmt.Sprintf(format, args...))
}

func (s *stage) title(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.titleLocked(format, args...)
}

func (s *stage) titleLocked(format string, args ...any) {
	fmt.Fprintf(s.out, "\n%s\n", show.Bold.Sprintf(format, args...))
}

// enter records that a worker has been granted the lock. asked is when the worker requested the
// lock.
func (s *stage) enter(name string, token uint64, asked time.Time) *visit {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grants++
	v := &visit{s: s, name: name, token: token, at: now}
	if s.inside != nil {
		s.overlaps++
		v.note += show.Alarm.Sprintf(", while %s is inside", s.inside.name)
	}
	if token <= s.token {
		s.falls++
		v.note += show.Alarm.Sprint(", which is not greater than the previous token")
	}
	s.token = max(s.token, token)
	if before := s.last; before != nil {
		gap := now.Sub(before.left)
		switch {
		case before.dead:
			s.failover = gap
			v.note += show.Bold.Sprintf(", %s after the kill of %s", show.Brief(gap), before.name)
		case asked.Before(before.left): // handed over, rather than found free
			s.gaps = append(s.gaps, gap)
			v.note += fmt.Sprintf(", %s after %s", show.Brief(gap), before.name)
		}
	}
	s.inside = v
	return v
}

// granted prints the grant.
func (v *visit) granted(queued int) {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	v.s.lineLocked(v.at, v.name, "gets the lock, token %d%s, %d waiting", v.token, v.note, queued)
}

// leave records that a worker is about to unlock.
func (v *visit) leave() {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	v.out(time.Now())
}

// crashed records that a holder was killed at time at.
func (v *visit) crashed(at time.Time) {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	v.dead = true
	v.out(at)
	v.s.lineLocked(at, v.name, "%s", show.Alarm.Sprint("killed (SIGKILL), without unlocking"))
}

func (v *visit) out(at time.Time) {
	v.left = at
	v.s.last = v
	if v.s.inside == v {
		v.s.inside = nil
	}
}

// count does a worker's work, a slow increment of the counter.
func (s *stage) count(work time.Duration) {
	n := s.counter
	time.Sleep(work)
	s.counter = n + 1
	s.mu.Lock()
	s.counted++
	s.mu.Unlock()
}
