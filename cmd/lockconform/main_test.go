//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
)

// judged is the verdict on one case as "lockconform --json" prints it.
type judged struct {
	Name, Must, Result, Violated, Expected, Seen string
	Level                                        int
}

// locker is the path of the locker under test.
var locker string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "lockconform-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	locker = filepath.Join(dir, "locker")
	if out, err := exec.Command("go", "build", "-o", locker, "../../internal/verify/locker").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// lockconform runs a command line in this process.
func lockconform(args ...string) (code int, stdout, stderr string) {
	var out, errs strings.Builder
	code = mainCode(args, &out, &errs)
	return code, out.String(), errs.String()
}

// conform runs the cases that match pattern against the locker, on levels 1 to 4. A pattern with a
// part, such as "rwlock:drain", selects the cases of that part on all levels.
func conform(t *testing.T, pattern string, flags ...string) (code int, cases []judged) {
	t.Helper()
	args := []string{"--json", "-p", "8", "--run", pattern}
	part, pattern, ok := strings.Cut(pattern, ":")
	if ok {
		args[len(args)-1] = pattern
		args = append(args, "--part", part, "--level", "5")
	}
	args = append(append(args, "--", locker), flags...)
	code, out, errs := lockconform(args...)
	for dec := json.NewDecoder(strings.NewReader(out)); dec.More(); {
		var c judged
		require.NoError(t, dec.Decode(&c), out)
		require.NotEqual(t, "error", c.Result, "%s: %s", c.Name, c.Seen)
		cases = append(cases, c)
	}
	require.NotEmpty(t, cases, errs)
	return code, cases
}

// requirePassed requires that the locker passes all cases.
func requirePassed(t *testing.T, flags ...string) {
	t.Helper()
	for pattern, most := range map[string]int{"*": 86, "rwlock:*": 16, "semaphore:*": 5} {
		_, cases := conform(t, pattern, flags...)
		require.Greater(t, len(cases), most)
		for _, c := range cases {
			if c.Level > 4 && len(flags) > 0 {
				continue // the plain locker does not claim this level
			}
			assert.Equal(t, "ok", c.Result, "%s: expected %s; seen %s", c.Name, c.Expected, c.Seen)
		}
	}
}

// TestConformLibrary runs the library through the cases that do not depend on a 2 s lease, which a
// stalled machine cannot make fail.
func TestConformLibrary(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"free", "name", "ttl", "ttl-fraction", "held", "tombstone", "release", "release-exact", "rwlock:read", "rwlock:write", "rwlock:try-write", "semaphore:permit"} {
		code, cases := conform(t, name)
		assert.Zero(t, code, "%s: expected %s; seen %s", name, cases[0].Expected, cases[0].Seen)
	}
}

// weaknesses maps each rule that the plain locker can break to a case that detects the breach in a
// single exchange.
var weaknesses = map[string]string{
	"unconditional-delete": "release-exact",
	"dropped-ttl":          "ttl",
	"truncated-ttl":        "ttl-fraction",
	"any-bucket":           "bucket-version",
	"in-flight-is-held":    "in-flight",
	"one-id":               "ids",
	"joins-without-guard":  "rwlock:read",
	"joins-at-a-live-gate": "rwlock:read-behind-gate",
	"first-behind-readers": "rwlock:read-beside-readers",
	"claims-foreign-slots": "semaphore:permit",
	"passes-the-queue":     "semaphore:permit-newcomer",
	"ignores-the-floor":    "tokens-backwards",
	"says-released":        "release-broken",
	"extends-unanswered":   "extend-lost",
	"keeps-the-longer-ttl": "extend-shorter",
	"extends-by-any-ttl":   "extend-range",
	"margin-of-a-second":   "margin",
	"zero-is-held":         "no-answer",
	"unavailable-is-held":  "no-answer",
	"takes-any-answer":     "answer-of-another",
}

// slowWeaknesses maps the rules whose breach shows only when a lease ends, or when something fails
// to happen.
var slowWeaknesses = map[string]string{
	"validity-from-answer":      "validity",
	"late-answers":              "late-answer",
	"notification-as-proof":     "forged-tombstone",
	"adopts-broken":             "broken-attempt",
	"renews-at-zero":            "renewal-zero",
	"renews-without-time":       "renewal",
	"leaves-a-late-renewal":     "late-renewal",
	"renews-the-broken":         "broken-later",
	"believes-place":            "place-ended",
	"late-write-ignored":        "late-write",
	"any-place":                 "places-readable",
	"renews-without-ticket":     "place-renewal",
	"compares-keys":             "place-again",
	"own-clock":                 "overdue-clock",
	"overdue-by-notification":   "overdue-notified",
	"verifies-once":             "bucket-unfit",
	"buffers-writes":            "buffered-write",
	"silence-is-held":           "no-answer",
	"grants-in-an-unfit-bucket": "unfit-answer",
	"ends-at-an-error":          "renewal-error",
	"takes-an-earlier-answer":   "earlier-renewal",
	"orders-by-revision":        "queue-order",
	"waits-for-nobody":          "fifo",
	"needs-many-keys":           "least-privilege",
	"reads-at-notifications":    "reconnect",
	"fails-in-an-outage":        "restart-waiter",
	"drops-at-a-disconnect":     "restart-held",
	"ignores-the-creation":      "bucket-anew",
	"settings-before-creation":  "bucket-anew-unfit",
	"drops-what-it-holds":       "unfit-held",
	"waiters-go-on":             "unfit-waiter",
	"renews-with-guard":         "rwlock:read-renewal",
	"joins-again-by-one-id":     "rwlock:read-again",
	"clears-the-gate":           "rwlock:read-clean-up",
	"passes-writers":            "rwlock:read-behind-writer",
	"waits-for-readers":         "rwlock:read-beside-readers",
	"writers-pass-readers":      "rwlock:write-behind-reader",
	"does-not-drain":            "rwlock:drain",
	"drains-by-notification":    "rwlock:drain-forged",
	"takes-the-broken-for-gone": "rwlock:drain-broken",
	"drains-by-an-old-answer":   "rwlock:drain-old-answer",
	"drains-by-any-bucket":      "rwlock:drain-anew",
	"any-free-slot":             "semaphore:permit-queue",
	"claims-two-slots":          "semaphore:permit-late",
	"early-out-of-turn":         "out-of-turn",
	"keeps-the-window":          "out-of-turn-cycle",
	"bridges-the-gap":           "out-of-turn-gap",
	"free-by-notification":      "out-of-turn-hint",
	"deletes-the-renewed-head":  "out-of-turn-exact",
	"deletes-all-before":        "out-of-turn-others",
}

// caught requires that the named case fails a locker with the weakness.
func caught(t *testing.T, weakness, name string) {
	t.Helper()
	code, cases := conform(t, name, "-plain", "-weak", weakness)
	require.Equal(t, 1, code)
	require.Equal(t, "failed", cases[0].Result)
	require.NotEmpty(t, cases[0].Expected)
	require.NotEmpty(t, cases[0].Seen)
}

// TestConformWeak checks that each rule broken by the locker is reported by the case written for
// it.
func TestConformWeak(t *testing.T) {
	t.Parallel()
	for weakness, name := range weaknesses {
		t.Run(weakness, func(t *testing.T) {
			t.Parallel()
			caught(t, weakness, name)
		})
	}
}

// TestConformPlain checks that the library and the plain locker pass all cases. So whenever a case
// fails a weakened locker, the weakness must be the cause.
func TestConformPlain(t *testing.T) {
	tier.Proof(t)
	requirePassed(t)
	requirePassed(t, "-plain")
	for _, name := range []string{"bucket-alone", "rwlock:drain-twice", "rwlock:drain-incomplete"} {
		caught(t, "any-bucket", name) // treats a replicated or mirrored bucket as a plain one
	}
	for _, name := range []string{"queue", "predecessor", "place-renewal"} {
		caught(t, "waits-for-nobody", name)
	}
	caught(t, "takes-an-earlier-answer", "earlier-answer")
	for _, all := range []map[string]string{weaknesses, slowWeaknesses} {
		for weakness, name := range all {
			t.Run(weakness, func(t *testing.T) {
				t.Parallel()
				for range 2 {
					caught(t, weakness, name)
				}
			})
		}
	}
}

// TestConformRuleFirst checks that the verdict leads with a broken write rule, even if the case
// itself has found something else.
func TestConformRuleFirst(t *testing.T) {
	t.Parallel()
	code, cases := conform(t, "ttl", "-plain", "-weak", "writes-floats")
	require.Equal(t, 1, code)
	require.Equal(t, mustNotRead, cases[0].Violated)
	require.Contains(t, cases[0].Seen, "unreadable: l is a float")
	require.Contains(t, cases[0].Seen, "then expected: ")
}

// TestConformSlowMachine checks that if the machine stalls, the program is blamed only for the
// writes that it has sent, because the machine may have caused everything else.
func TestConformSlowMachine(t *testing.T) {
	t.Parallel()
	srv, err := startServer(t.TempDir(), 0)
	require.NoError(t, err)
	t.Cleanup(func() { stopServer(srv) })
	for weakness, expected := range map[string]string{"in-flight-is-held": "error", "dropped-ttl": "failed"} {
		name := weaknesses[weakness]
		c := &command{Names: name, Level: 4, Parallel: 1, Program: []string{locker, "-plain", "-weak", weakness}, out: io.Discard}
		r := &run{command: c, url: srv.ClientURL(), late: func() time.Duration { return time.Second }}
		results := r.all(t.Context(), c.chosen(), func(result) {})
		require.Equal(t, expected, results[0].Result, "%s", results[0].Seen)
		require.Equal(t, expected == "error", strings.Contains(results[0].Seen, "the machine is too slow: a timer was 1s late"))
		if expected == "error" {
			require.ErrorContains(t, c.report(results), "cases that could not be judged: 1")
		}
	}
	require.Zero(t, len((&command{Names: "held", Only: 2, Level: 2}).chosen()), "a case of another level than the only one")
}

// TestConformProgram checks the errors for a bad command line and for a program that fails before
// it requests a lock.
func TestConformProgram(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code int
		args []string
		says string
	}{
		{64, nil, "no program given"},
		{64, []string{"--level", "6", "--", "true"}, "--level 6: must be 1 to 5"},
		{64, []string{"--only", "6", "--", "true"}, "--only 6: must be 1 to 5"},
		{64, []string{"--part", "election", "--", "true"}, "--part election: must be rwlock or semaphore"},
		{64, []string{"--run", "nothing", "--", "true"}, "no case up to level 4 matches"},
		{127, []string{"--", "no-such-program"}, "cannot run no-such-program"},
		{1, []string{"--run", "free", "--", "true"}, "the program has ended"},
		{1, []string{"--run", "free", "--", "echo", "no JSON"}, `the line "no JSON"`},
		{0, []string{"--list", "--level", "1"}, "(M67)"},
		{0, []string{"--list", "--only", "2", "--run", "held,renewal"}, "renewal"},
	} {
		code, out, errs := lockconform(c.args...)
		require.Equal(t, c.code, code, "%v: %s%s", c.args, out, errs)
		require.Contains(t, out+errs, c.says, "%v", c.args)
	}
}
