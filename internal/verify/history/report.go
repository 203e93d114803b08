package history

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mostShown limits the number of violations that a failing test prints.
const mostShown = 12

// Verify checks a history, fails the test if the history breaks a rule, and returns the
// violations. On failure it writes the history to disk, with a picture of what check 4 found,
// and prints what happened around the first violation. It must not be called in a bubble.
func Verify(t testing.TB, h *History, o Options) []Violation {
	t.Helper()
	found := Check(h, o)
	if len(found) == 0 {
		return nil
	}
	var b strings.Builder
	for i, v := range found {
		if i == mostShown {
			fmt.Fprintf(&b, "and %d more\n", len(found)-mostShown)
			break
		}
		fmt.Fprintln(&b, v)
	}
	if i := slices.IndexFunc(found, func(v Violation) bool { return v.Lock != "" }); i >= 0 {
		b.WriteString(excerpt(h, found[i]))
	}
	files, err := write(t.Name(), h, found)
	if err != nil {
		fmt.Fprintln(&b, "cannot write the history:", err)
	}
	for _, f := range files {
		fmt.Fprintln(&b, "history:", f)
	}
	if h.Repeat != "" {
		fmt.Fprintln(&b, "repeat with:", h.Repeat)
	}
	t.Errorf("%d violations\n%s", len(found), b.String())
	return found
}

// An excerpt shows at most shownBefore events up to a violation, and shownAfter events after
// it.
const shownBefore, shownAfter = 40, 10

var longID = regexp.MustCompile(`[A-Z2-7]{26}`)

// excerpt returns what happened to a lock around a violation, one event per line.
func excerpt(h *History, v Violation) string {
	type event struct {
		at        Moment
		who, what string
	}
	var all []event
	note := func(at Moment, who, format string, args ...any) {
		if !at.zero() {
			all = append(all, event{at, who, fmt.Sprintf(format, args...)})
		}
	}
	same := func(lock string) bool { return lock == v.Lock || lock == semaphoreOf(v.Lock) }
	for _, op := range h.Ops {
		if same(op.Lock) && (op.Do != Use || op.Outcome != OK) {
			mode := ""
			if op.Shared {
				mode = " shared"
			}
			note(op.Call, op.Client, "calls %s%s %s", op.Do, mode, op.ID)
			note(op.Return, op.Client, "%s%s %s returns: %s, token %d %s", op.Do, mode, op.ID, op.Outcome, op.Token, op.Err)
		}
	}
	for _, hold := range h.Holds {
		if same(hold.Lock) {
			note(hold.end(), hold.Client, "no longer believes it holds token %d", hold.Token)
		}
	}
	for _, e := range h.Stream {
		if lock, _ := lockOf(e.Key); same(lock) || e.Remade {
			what := "put"
			if e.Deleted {
				what = "deleted"
			}
			note(Moment{At: e.At}, "bucket", "%d %s %s: %s, status %d, renewal %d, until %v", e.Revision, what, e.Key, e.ID, e.Status, e.Renewal, e.ends())
		}
	}
	for _, d := range h.Disturbances {
		note(Moment{At: d.From}, cmp.Or(d.Client, "all"), "is disturbed: %s", d.What)
		if d.Until > d.From {
			note(Moment{At: d.Until}, cmp.Or(d.Client, "all"), "is no longer disturbed: %s", d.What)
		}
	}
	note(Moment{At: v.At, Seq: math.MaxInt64}, "----", "the violation")
	slices.SortStableFunc(all, func(a, b event) int { return a.at.compare(b.at) })
	i := slices.IndexFunc(all, func(e event) bool { return e.who == "----" })
	var b strings.Builder
	fmt.Fprintf(&b, "around the violation of check %d of %s:\n", v.Check, v.Lock)
	for _, e := range all[max(i-shownBefore, 0):min(i+1+shownAfter, len(all))] {
		what := longID.ReplaceAllStringFunc(strings.TrimSpace(e.what), func(id string) string { return id[:6] })
		fmt.Fprintf(&b, "%15v %-6s %s\n", e.at.At, e.who, what)
	}
	return b.String()
}

// Check checks what has happened so far, and fails the test as [Verify] does. It may be called
// in a bubble if only grants were recorded.
func (r *Recorder) Check(t testing.TB) {
	t.Helper()
	Verify(t, r.History(), Options{})
}

// write writes a history and the pictures of its violations to files.
func write(name string, h *History, found []Violation) (files []string, err error) {
	dir := os.Getenv("NATSLOCK_HISTORIES")
	if dir == "" {
		dir = filepath.Join(os.TempDir(), "natslock-histories")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	dir, err = os.MkdirTemp(dir, strings.Map(plain, name)+"-")
	if err != nil {
		return nil, err
	}
	body, err := json.MarshalIndent(h, "", " ")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "history.json")
	if err := os.WriteFile(path, body, 0o644); err != nil {
		return nil, err
	}
	files = append(files, path)
	for _, v := range found {
		if v.picture == nil {
			continue
		}
		path := filepath.Join(dir, strings.Map(plain, v.Lock)+".html")
		if err := v.picture(path); err != nil {
			return files, err
		}
		files = append(files, path)
		if len(files) > 3 {
			break
		}
	}
	return files, nil
}

// plain replaces characters that do not belong in a file name.
func plain(r rune) rune {
	if r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
		return r
	}
	return '_'
}
