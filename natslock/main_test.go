package natslock_test

import (
	"testing"

	"github.com/natslock/locks/internal/verify/kit"
)

func TestMain(m *testing.M) { kit.Main(m) }
