package history

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// mostShown bounds how many violations a failing test prints.
const mostShown = 12

// Verify checks a history, and fails the test when it breaks a rule. The history
// is then written to disk, with a picture of what check 4 has found. It must not
// be called in a bubble.
func Verify(t testing.TB, h *History, o Options) {
	t.Helper()
	found := Check(h, o)
	if len(found) == 0 {
		return
	}
	var b strings.Builder
	for i, v := range found {
		if i == mostShown {
			fmt.Fprintf(&b, "and %d more\n", len(found)-mostShown)
			break
		}
		fmt.Fprintln(&b, v)
	}
	files, err := write(t.Name(), h, found)
	if err != nil {
		fmt.Fprintln(&b, "the history could not be written:", err)
	}
	for _, f := range files {
		fmt.Fprintln(&b, "written:", f)
	}
	if h.Repeat != "" {
		fmt.Fprintln(&b, "again:", h.Repeat)
	}
	t.Errorf("%d violations\n%s", len(found), b.String())
}

// Check checks what has happened so far, and fails the test as [Verify] does. It
// may be called in a bubble when grants alone were recorded.
func (r *Recorder) Check(t testing.TB) {
	t.Helper()
	Verify(t, r.History(), Options{})
}

// write puts a history and the pictures of its violations into files.
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

// plain replaces what a file's name should not have.
func plain(r rune) rune {
	if r == '-' || r == '.' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
		return r
	}
	return '_'
}
