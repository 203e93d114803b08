package natslockotel

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/partition"
)

// TestPartitionMetricOf checks that each field of partition.Stats is exported as the metric of the
// same name.
func TestPartitionMetricOf(t *testing.T) {
	fields := reflect.TypeFor[partition.Stats]()
	require.Len(t, partitionMetrics, fields.NumField())
	for i, m := range partitionMetrics {
		var s partition.Stats
		field := reflect.ValueOf(&s).Elem().Field(i)
		if field.CanInt() {
			field.SetInt(7)
		} else {
			field.SetUint(7)
		}
		require.Equal(t, "natslock.partition."+strings.ToLower(fields.Field(i).Name), m.name)
		require.Equal(t, field.CanUint(), m.counts)
		require.EqualValues(t, 7, m.of(s))
	}
}
