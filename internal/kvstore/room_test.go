package kvstore_test

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/kvstore"
)

// Where renewals count in full, Room leaves the last quarter of each limit to them.
func TestRoom(t *testing.T) {
	for name, c := range map[string]struct {
		replicas        int
		bytes, msgs     uint64
		maxBytes, maxes int64
		full            bool
	}{
		"no limit":              {3, 1 << 40, 1 << 30, -1, -1, false},
		"three quarters":        {3, 750, 1, 1000, 0, false},
		"more":                  {3, 751, 1, 1000, 0, true},
		"records":               {3, 1, 75, 0, 100, false},
		"more records":          {3, 1, 76, 0, 100, true},
		"the second limit":      {3, 1, 76, 1000, 100, true},
		"one server":            {1, 15 << 20, 1 << 20, 16 << 20, 0, false},
		"one server, more":      {1, 15<<20 + 1, 1 << 20, 16 << 20, 0, true},
		"one small server":      {1, 750, 1, 1000, 0, false},
		"one server's records":  {1, 1, 94, 0, 100, false},
		"more of its records":   {1, 1, 95, 0, 100, true},
		"far above, five":       {5, 1 << 40, 1, 1000, 0, true},
		"nothing in it":         {3, 0, 0, 1000, 100, false},
		"a limit of one record": {3, 0, 0, 0, 1, false},
	} {
		info := &jetstream.StreamInfo{
			Config: jetstream.StreamConfig{Name: "KV_b", Replicas: c.replicas, MaxBytes: c.maxBytes, MaxMsgs: c.maxes},
			State:  jetstream.StreamState{Bytes: c.bytes, Msgs: c.msgs},
		}
		err := kvstore.Room(info)
		if (err != nil) != c.full || c.full && !(errors.Is(err, kvstore.ErrFull) && errors.Is(err, kvstore.ErrUnavailable)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
