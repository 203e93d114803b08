package kvstore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/kvstore"
	"github.com/natslock/locks/testutil"
)

// TestNilAndTooLong checks that no exported function panics on a nil argument or sends a value that
// is too long.
func TestNilAndTooLong(t *testing.T) {
	nc := testutil.RunServer(t).Connect()
	js := kit.JetStream(t, nc)
	s, err := kvstore.Open(t.Context(), js, kvstore.Config{})
	require.NoError(t, err)
	defer s.Close()
	(&kit.Surface{
		Funcs:  map[string]any{"Open": kvstore.Open},
		Types:  map[string]func(*testing.T) any{"Store": func(*testing.T) any { return s }},
		Args:   []any{js, time.Minute},
		Sent:   func() int { return int(nc.Stats().OutMsgs) },
		Except: map[string]string{},
	}).RefusesNilAndTooLong(t)
}
