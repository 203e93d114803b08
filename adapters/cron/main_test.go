package cronlock_test

import (
	"testing"

	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) { testutil.LeakCheck(m) }
