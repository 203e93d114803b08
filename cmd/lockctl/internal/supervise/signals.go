package supervise

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// requests are the signals that ask a process to end. All other signals that lockctl passes on
// are messages to the command.
var requests = append([]os.Signal{os.Interrupt, syscall.SIGTERM}, platformRequests...)

// Signals returns a channel that receives the signals for the command, except those that this
// process ignores.
func Signals() <-chan os.Signal {
	signals := make(chan os.Signal, 16)
	for _, sig := range slices.Concat(requests, platformMessages) {
		if !signal.Ignored(sig) { // nohup applies to the command as well
			signal.Notify(signals, sig)
		}
	}
	return signals
}
