package partition_test

import (
	"os"
	"testing"

	"github.com/natslock/locks/internal/verify/history"
	"github.com/natslock/locks/testutil"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(workerURL); url != "" {
		work(url)
		return
	}
	history.Quiet()
	testutil.LeakCheck(m)
}
