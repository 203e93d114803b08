package core

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
)

// TestArrival checks that a newcomer claims a free key at the revision it has read, unless others
// wait.
func TestArrival(t *testing.T) {
	none, held, own := record.Entry{}, heldAt(7), stored(8, "me", 1, record.StatusHeld)
	gone := stored(9, "B", 1, record.StatusGone)
	gone.Deleted = true
	for _, c := range []struct {
		name    string
		arrival Arrival
		claims  []KeyAt
		holder  string
	}{
		{"nothing", Arrival{Keys: []record.Entry{none}}, []KeyAt{{0, 0}}, ""},
		{"a tombstone", Arrival{Keys: []record.Entry{gone}}, []KeyAt{{0, 9}}, ""},
		{"held", Arrival{Keys: []record.Entry{held}}, nil, "holder"},
		{"an earlier attempt", Arrival{Keys: []record.Entry{own}, Own: "me"}, []KeyAt{{0, 0}}, ""},
		{"others wait", Arrival{Keys: []record.Entry{gone}, Waiting: 1}, nil, ""},
		{"others may wait", Arrival{Keys: []record.Entry{gone}, More: true}, nil, ""},
		{"held, and others wait", Arrival{Keys: []record.Entry{held}, Waiting: 1}, nil, "holder"},
		{"permits: the highest free one first", Arrival{Keys: []record.Entry{none, held, gone}}, []KeyAt{{2, 9}, {0, 0}}, "holder"},
		{"permits: an earlier attempt first", Arrival{Keys: []record.Entry{own, held, gone}, Own: "me"}, []KeyAt{{0, 0}, {2, 9}}, "holder"},
		{"permits: all held", Arrival{Keys: []record.Entry{held, held}}, nil, "holder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			claims, holder := c.arrival.Claims()
			require.Equal(t, c.claims, claims)
			require.Equal(t, c.holder, holder.ID)
		})
	}
}
