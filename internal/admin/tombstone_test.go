package admin

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// Deleting an overdue place is not a change, because its end was already reported. The tombstone shows
// this even for a semaphore, where it carries no number of permits.
func TestTombstoneOfPlace(t *testing.T) {
	for _, kind := range []record.Kind{record.Mutex, record.RW, record.Semaphore} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			body := record.Body{Status: record.StatusGone, ID: "A", Client: "c"}
			value, err := body.Encode()
			require.NoError(t, err)
			e := record.Of(kvstore.Record{Key: record.KeysOf(kind, "l").Place("A"), Revision: 7, Value: value, Deleted: true})
			_, changed := changeOf(step{kind: kvstore.Deleted, entry: e})
			require.False(t, changed)
			require.True(t, e.From("A"))
		})
	}
}
