package record

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
)

// TestBodyIsWhole encodes a body with every field set and reads it back, so a field that
// was added to Body but not to its encoding shows up here.
func TestBodyIsWhole(t *testing.T) {
	full := Body{
		Status: StatusBroken, ID: "i", Client: "c", Attempt: 1, Renewal: 2, Token: 1 << 62, TTL: 3, Fixed: true, Mode: 1, Permits: 13, Since: -4, Waited: 8,
		Size: 9, Grants: 10, Waits: 11, Lingers: true, InUse: true, By: 14, Purpose: Job,
		Owner: "o", Host: "h", PID: 5, Started: 6, Meta: metadata{"k": "v"}, BrokenBy: "b", Reason: "r", BrokenAt: 7,
	}
	value, err := full.Encode()
	require.NoError(t, err)
	for i := range reflect.TypeFor[Body]().NumField() {
		require.False(t, reflect.ValueOf(full).Field(i).IsZero(), "%s is not set here", reflect.TypeFor[Body]().Field(i).Name)
	}
	var back Body
	require.NoError(t, msgpack.Unmarshal(value, &back))
	require.Equal(t, full, back)
}

// TestBodyOmitsZeroes checks that unset fields take no space in the bucket.
func TestBodyOmitsZeroes(t *testing.T) {
	value, err := (&Body{Status: StatusGone, ID: "i"}).Encode()
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, msgpack.Unmarshal(value, &fields))
	require.Len(t, fields, 4)
	b, err := Decode(value)
	require.NoError(t, err)
	require.Equal(t, Body{Version: 1, Status: StatusGone, ID: "i"}, b)
}
