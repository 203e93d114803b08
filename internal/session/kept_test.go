package session

import (
	"testing"

	"github.com/natslock/locks/internal/bucket"
	"github.com/natslock/locks/internal/record"
)

// Goroutines join the run of a place until its driver has noted the grant. The race
// detector judges.
func TestTombstoneOfARunThatGrows(t *testing.T) {
	k := kept{s: &Session{b: bucket.New(nil, "", nil)}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		k.SetSize(2)
	}()
	if _, err := k.tombstone(record.StatusGranted); err != nil {
		t.Error(err)
	}
	<-done
}
