package election_test

import (
	"testing"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) {
	kit.Quiet()
	testutil.LeakCheck(m)
}
