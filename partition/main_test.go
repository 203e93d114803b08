package partition_test

import (
	"os"
	"testing"

	"github.com/natslock/locks/internal/verify/kit"
)

// workerURL is the environment variable that turns the test binary into a worker of the group on
// the given server.
const workerURL = "NATSLOCK_PARTITION_WORKER"

// beWorker runs that worker on systems that can stop processes.
var beWorker func(url string)

func TestMain(m *testing.M) {
	if url := os.Getenv(workerURL); url != "" {
		beWorker(url)
		return
	}
	kit.Quiet()
	kit.LeakCheck(m)
}
