package election_test

import (
	"testing"
	"time"

	"github.com/natslock/locks/internal/verify/kit"
)

func TestMain(m *testing.M) {
	kit.Quiet()
	kit.Patience = 30 * time.Second
	kit.LeakCheck(m)
}
