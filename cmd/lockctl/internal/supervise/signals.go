package supervise

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// requests are the signals that ask a process to end. The others that lockctl passes on
// to a command are messages to it.
var requests = append([]os.Signal{os.Interrupt, syscall.SIGTERM}, platformRequests...)

// Signals returns the signals that are for the command, from now on. Those that the process
// ignores are not among them.
func Signals() <-chan os.Signal {
	signals := make(chan os.Signal, 16)
	for _, sig := range slices.Concat(requests, platformMessages) {
		if !signal.Ignored(sig) { // nohup stays nohup, for the command as well
			signal.Notify(signals, sig)
		}
	}
	return signals
}
