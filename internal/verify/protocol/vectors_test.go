package protocol_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/kit"
)

func TestMain(m *testing.M) { kit.LeakCheck(m) }

// file contains the vectors. The specification describes its parts.
const file = "../../../docs/protocol/vectors.json"

// vectors is the content of the file.
type vectors struct {
	Protocol string
	Names    []struct{ Bytes, Encoded string }
	Keys     []struct {
		Key, Prefix, Name, ID string
		Slot                  int
	}
	Tokens []struct {
		Revision uint64
		Grant    int
		Token    uint64
	}
	Leases []struct {
		TTL    int64 `json:"ttl"`
		Margin int64 `json:"margin_ms"`
		Valid  int64 `json:"valid_ms"`
	}
	Records    map[string]vector
	Unreadable map[string]string
	Readable   map[string]vector
	Exchange   []step
}

// vector is a record with its meaning, its fields, the fields whose values do not matter, and its
// bytes.
type vector struct {
	Meaning string
	Fields  map[string]any
	Any     []string
	Hex     string
}

func (v vector) bytes(t *testing.T) []byte {
	t.Helper()
	b, err := hex.DecodeString(v.Hex)
	require.NoError(t, err)
	return b
}

// read reads the file. A field that this test does not know is an error, so that nothing in the
// file goes unchecked.
func read(t *testing.T) vectors {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	d.UseNumber()
	var v vectors
	require.NoError(t, d.Decode(&v))
	return v
}

// TestNames encodes the names in the vectors and parses their keys.
func TestNames(t *testing.T) {
	v := read(t)
	require.NotEmpty(t, v.Names)
	for _, n := range v.Names {
		name, err := hex.DecodeString(n.Bytes)
		require.NoError(t, err)
		encoded, err := record.EncodeName(string(name))
		require.NoError(t, err)
		require.Equal(t, n.Encoded, encoded)
		key, ok := record.ParseKey("lock." + n.Encoded)
		require.True(t, ok, "%s is decoded", n.Encoded)
		require.Equal(t, string(name), key.Name)
	}
	require.NotEmpty(t, v.Keys)
	for _, k := range v.Keys {
		key, ok := record.ParseKey(k.Key)
		require.True(t, ok, k.Key)
		require.Equal(t, record.Key{Prefix: k.Prefix, Name: k.Name, ID: k.ID, Slot: k.Slot}, key)
	}
}

// TestTokens computes the tokens in the vectors.
func TestTokens(t *testing.T) {
	v := read(t)
	require.NotEmpty(t, v.Tokens)
	for _, c := range v.Tokens {
		require.Equal(t, c.Token, record.Token(c.Revision, c.Grant))
		require.Equal(t, c.Revision, record.TokenRevision(c.Token))
		require.Equal(t, c.Grant, record.TokenGrant(c.Token))
	}
}

// TestLeases computes the margins and validities in the vectors.
func TestLeases(t *testing.T) {
	v := read(t)
	require.NotEmpty(t, v.Leases)
	for _, c := range v.Leases {
		terms := clock.NewTerms(time.Duration(c.TTL) * time.Second)
		require.Equal(t, c.Margin, terms.Margin.Milliseconds(), "the margin of %d s", c.TTL)
		require.Equal(t, c.Valid, terms.End(0).Sub(0).Milliseconds(), "the validity of %d s", c.TTL)
	}
}

// TestRecords decodes each record in the vectors, compares its fields, and encodes it to the same
// bytes again.
func TestRecords(t *testing.T) {
	v := read(t)
	statuses := map[record.Status]bool{}
	fields := map[string]bool{}
	for name, c := range v.Records {
		value := c.bytes(t)
		body, err := record.Decode(value)
		require.NoError(t, err, name)
		again, err := body.Encode()
		require.NoError(t, err, name)
		require.Equal(t, c.Hex, hex.EncodeToString(again), name)
		statuses[body.Status] = true

		// These are the fields as any msgpack library reads them.
		var read map[string]any
		require.NoError(t, msgpack.Unmarshal(value, &read), name)
		want, err := json.Marshal(c.Fields)
		require.NoError(t, err)
		got, err := json.Marshal(read)
		require.NoError(t, err)
		require.JSONEq(t, string(want), string(got), name)
		for f := range read {
			fields[f] = true
		}
	}
	for s := record.StatusHeld; s <= record.StatusPassed; s++ {
		require.Equal(t, s < 6 || s > 8, statuses[s], "vectors of the status %d, but 6 to 8 mean nothing", s)
	}
	require.Len(t, fields, 28, "a field without a vector")
}

// TestReadable reads values that no writer should write but that every reader must read alike.
func TestReadable(t *testing.T) {
	v := read(t)
	require.NotEmpty(t, v.Readable)
	for meaning, c := range v.Readable {
		body, err := record.Decode(c.bytes(t))
		require.NoError(t, err, meaning)
		again, err := body.Encode()
		require.NoError(t, err, meaning)
		var read map[string]any
		require.NoError(t, msgpack.Unmarshal(again, &read), meaning)
		for _, field := range c.Any {
			require.Contains(t, read, field, meaning)
			delete(read, field)
		}
		want, err := json.Marshal(c.Fields)
		require.NoError(t, err)
		got, err := json.Marshal(read)
		require.NoError(t, err)
		require.JSONEq(t, string(want), string(got), meaning)
	}
}

// TestUnreadable reads values that no client may mistake for a record of its own.
func TestUnreadable(t *testing.T) {
	v := read(t)
	require.NotEmpty(t, v.Unreadable)
	for meaning, text := range v.Unreadable {
		value, err := hex.DecodeString(text)
		require.NoError(t, err)
		e := record.Of(kvstore.Record{Key: "lock.x", Value: value, Revision: 7})
		require.True(t, e.Unreadable, meaning)
		require.True(t, e.Live(), "%s: it keeps others out", meaning)
		require.Empty(t, record.Queue([]kvstore.Record{{Key: "wait.x.A", Value: value, Revision: 7}}), meaning)
	}
}
