package election_test

import (
	"testing"
	"time"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) {
	kit.Quiet()
	kit.Patience = 30 * time.Second
	testutil.LeakCheck(m)
}
