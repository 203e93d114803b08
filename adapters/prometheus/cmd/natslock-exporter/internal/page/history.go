package page

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

const (
	// mostHistories limits how many histories are read concurrently.
	mostHistories = 2
	// historyTime limits how long it may take to read a history.
	historyTime = 10 * time.Second
)

// tell reads the history of a lock.
func (s *server) tell(ctx context.Context, lock mirror.ID, ago time.Duration) story {
	now := time.Now()
	t := newTeller(lock.Kind, now.Add(-ago), now)
	if shows := s.hub.about.Shows; shows != nil && !shows(lock.Name) { // guessing a name must not reveal a lock
		return t.without(fmt.Errorf("this page shows only the locks %s", s.hub.about.Names), s.hub.about)
	}
	client := s.hub.src.Client()
	if client == nil {
		return t.without(errors.New("the exporter is not following the bucket"), s.hub.about)
	}
	select {
	case s.histories <- struct{}{}:
		defer func() { <-s.histories }()
	case <-ctx.Done():
		return t.without(errors.New("other histories are being read; try again later"), s.hub.about)
	}
	for ev, err := range admin.New(client).History(ctx, lock.Name, t.from) {
		if errors.Is(err, kvstore.ErrNoHistory) || errors.Is(err, natslock.ErrPermission) {
			seen := newTeller(lock.Kind, t.from, t.to)
			for _, ev := range s.hub.seen(lock, t.from) {
				seen.add(ev)
			}
			return seen.without(err, s.hub.about)
		}
		if err != nil {
			return t.without(err, s.hub.about)
		}
		if ev.Type == admin.EventGap && ev.Name == "" || ev.Kind == lock.Kind && ev.Name == lock.Name { // History may have interpreted the name as a pattern
			t.add(ev)
		}
	}
	return t.story()
}

// without returns the story so far, with err as the reason why it ends there.
func (t *teller) without(err error, about About) story {
	out := t.story()
	out.Why = err.Error()
	switch {
	case errors.Is(err, kvstore.ErrNoHistory):
		out.Why = "Bucket " + about.Bucket + " does not keep a history."
		out.Remedy = fmt.Sprintf("# enables history from now on:\nlockctl init --bucket %s --history 7d", about.Bucket)
	case errors.Is(err, natslock.ErrPermission):
		out.Why = "The exporter's user may not read the history: " + out.Why + "."
		out.Remedy = fmt.Sprintf("# prints the permissions that the user needs in the server configuration:\nlockctl perms '%s' --role observer --history --bucket %s", about.Names, about.Bucket)
	case errors.Is(err, context.DeadlineExceeded):
		out.Why = "Reading the history took longer than " + historyTime.String() + ": choose a shorter time."
	}
	return out
}
