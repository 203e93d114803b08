package kit

import (
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// LeakCheck runs a package's tests, waits briefly, and fails if goroutines are left. TestMain
// should consist only of this call:
//
//	func TestMain(m *testing.M) { kit.LeakCheck(m) }
//
// It ignores two goroutines of nats-server's file store, but no other server goroutine. A
// clustered server that shuts down while it is opening a store can leave the store open. With
// 2.15.2 on a busy machine that happened in one of three runs.
func LeakCheck(m *testing.M) {
	const server = "github.com/nats-io/nats-server/v2/server"
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction(server+".(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction(server+"/ats.Register.func1"))
}

// Goroutines counts the goroutines, except the caller's, whose stack contains substring, such
// as the name of a package or function. In a bubble it counts only the bubble's goroutines,
// because leftovers of earlier tests may end at any time. It briefly stops the world.
func Goroutines(substring string) int {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	// The first stack is the caller's: "goroutine 7 [running, synctest bubble 2]:".
	caller, others, _ := strings.Cut(string(buf), "\n\n")
	header, _, _ := strings.Cut(caller, "\n")
	_, bubble, _ := strings.Cut(header, ", synctest ")
	count := 0
	for stack := range strings.SplitSeq(others, "\n\n") {
		if header, _, _ := strings.Cut(stack, "\n"); strings.HasSuffix(header, bubble) && strings.Contains(stack, substring) {
			count++
		}
	}
	return count
}
