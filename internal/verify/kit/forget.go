package kit

import (
	"encoding/binary"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/testutil"
)

// ForgetTTLs makes a stopped server forget the TTLs of all records that it has stored in files.
// After a restart it serves those records forever, including those that have expired in the
// meantime. Real servers get into that state when they are killed soon after starting:
// nats-server 2.15 then logs "TTL state is outdated", and finds only some of the TTLs. The TTLs
// of later writes are kept as usual.
func ForgetTTLs(t testing.TB, s *testutil.Server) {
	t.Helper()
	require.False(t, s.Running(), "the server runs")
	// The state consists of a version, the number of entries, the sequence that it covers, and
	// the entries. Here it has no entries, and covers everything up to the largest possible
	// sequence.
	state := binary.LittleEndian.AppendUint64([]byte{1}, 0)
	state = binary.LittleEndian.AppendUint64(state, math.MaxUint64)
	found := 0
	err := filepath.WalkDir(s.StoreDir(), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "thw.db" {
			return err
		}
		found++
		return os.WriteFile(path, state, 0o600)
	})
	require.NoError(t, err)
	require.NotZero(t, found, "no stream in files has a record with a TTL")
}

// RestartWithoutTTLs restarts a server and makes it forget the TTLs of all stored records.
func RestartWithoutTTLs(t testing.TB, s *testutil.Server) {
	t.Helper()
	s.Stop()
	ForgetTTLs(t, s)
	s.Restart()
}
