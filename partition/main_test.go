package partition_test

import (
	"testing"

	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) {
	history.Quiet()
	testutil.LeakCheck(m)
}
