package partition_test

import (
	"os"
	"testing"

	"github.com/natslock/locks/internal/verify/kit"
)

// workerURL has TestMain be a worker of the group on a server instead.
const workerURL = "NATSLOCK_PARTITION_WORKER"

// beWorker is that worker, where the system can stop processes.
var beWorker func(url string)

func TestMain(m *testing.M) {
	if url := os.Getenv(workerURL); url != "" {
		beWorker(url)
		return
	}
	kit.Quiet()
	kit.LeakCheck(m)
}
