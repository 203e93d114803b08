package testutil

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// serverLog keeps the server's errors, which explain why it did not start. If the
// test wants the log, serverLog passes every line on.
type serverLog struct {
	mu    sync.Mutex
	t     testing.TB // nil to keep only errors
	lines []string
}

// end stops passing lines on, because the goroutines of a stopped server may
// still log, and no one may log to a test that has ended.
func (l *serverLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t = nil
}

func (l *serverLog) errors() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == 0 {
		return "no error was logged"
	}
	return strings.Join(l.lines, "; ")
}

func (l *serverLog) keep(level, format string, v []any) {
	line := fmt.Sprintf(format, v...)
	l.mu.Lock()
	if len(l.lines) < 10 {
		l.lines = append(l.lines, line)
	}
	l.mu.Unlock()
	l.pass(level, "%s", line)
}

func (l *serverLog) pass(level, format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.t != nil {
		l.t.Logf("nats-server %s %s", level, fmt.Sprintf(format, v...))
	}
}

func (l *serverLog) Noticef(format string, v ...any) { l.pass("INF", format, v...) }
func (l *serverLog) Warnf(format string, v ...any)   { l.pass("WRN", format, v...) }
func (l *serverLog) Fatalf(format string, v ...any)  { l.keep("FTL", format, v) }
func (l *serverLog) Errorf(format string, v ...any)  { l.keep("ERR", format, v) }
func (l *serverLog) Debugf(string, ...any)           {}
func (l *serverLog) Tracef(string, ...any)           {}
