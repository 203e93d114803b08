package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/natslock/locks/internal/tool"
)

// report prints the error, unless it is silent, and returns its exit code.
func report(err error) int {
	refused.end(err)
	if err == nil {
		return 0
	}
	if coded, ok := errors.AsType[*tool.Error](err); !ok || coded.Err != nil {
		complain("%v", err)
	}
	return tool.CodeOf(err)
}

// complaints is where complain writes to. While top draws on the screen it is a buffer.
var complaints io.Writer = os.Stderr

// complain writes one message to standard error. Everything that lockctl itself
// says there starts with its name, because the command it runs writes there
// too.
func complain(format string, args ...any) {
	msg := strings.TrimPrefix(fmt.Sprintf(format, args...), "natslock: ")
	msg = strings.ReplaceAll(strings.TrimSpace(msg), "\n", "\nlockctl: ")
	status.above(func() { fmt.Fprintf(complaints, "lockctl: %s\n", msg) })
}
