package session

import (
	"testing"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
)

// Goroutines join the run of a place until its driver has noted the grant. The race
// detector judges.
func TestTombstoneOfARunThatGrows(t *testing.T) {
	k := &Place{}
	k.s, k.of = &Session{b: bucket.New(nil, "", nil)}, k
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.SetSize(2)
	}()
	if _, err := k.closing(record.StatusGranted, &core.Removal{}); err != nil {
		t.Error(err)
	}
	<-done
}
