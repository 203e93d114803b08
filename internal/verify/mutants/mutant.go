package main

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one weakening of the library: what an operator does to the line with a
// label, or a patch.
type mutant struct {
	label    string // of the line
	operator string // applied to the line
	weak     string // what the weakened library does
	test     string // what has to fail: package directory, dot, test, as go test names it
	patch    *patch // in place of an operator
}

// name tells the mutant from all others.
func (m mutant) name() string {
	if m.patch != nil {
		return m.label
	}
	return m.label + ":" + strings.ReplaceAll(m.operator, " ", "-")
}

// mutants are all of them.
var mutants = slices.Concat(storeMutants, bucketMutants, lockctlMutants, patches)

// apply returns the weakened file and its name. The error says why the mutant does
// not fit.
func (m mutant) apply(root string, labels map[string]place) (file string, text []byte, err error) {
	at, found := labels[m.label]
	switch {
	case m.patch != nil:
		at.file = m.patch.file
	case !found:
		return "", nil, errors.New("no line has the label")
	}
	src, err := os.ReadFile(filepath.Join(root, at.file))
	if err != nil {
		return "", nil, err
	}
	if m.patch != nil {
		text, err = m.patch.apply(src)
	} else {
		text, err = weaken(src, at.line, m.operator)
	}
	if err == nil && string(text) == string(src) {
		err = errors.New("it changes nothing")
	}
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", at.file, err)
	}
	return at.file, text, nil
}

// target splits the name of the test: the package's directory, the test.
func (m mutant) target() (dir, test string) {
	dir, test, _ = strings.Cut(m.test, ".")
	return dir, test
}

// patch changes the text of a file. It is for internal/lease alone, whose lines get
// their labels in the rooms that they move to.
type patch struct {
	file  string // from the module's root
	edits []edit
}

// edit replaces a text that the file has exactly once.
type edit struct{ old, new string }

// patched is the mutant of one edit.
func patched(name, weak, test, file, old, new string) mutant {
	return mutant{label: name, weak: weak, test: test, patch: &patch{file, []edit{{old, new}}}}
}

func (p *patch) apply(src []byte) ([]byte, error) {
	text := string(src)
	for _, e := range p.edits {
		if n := strings.Count(text, e.old); n != 1 {
			return nil, fmt.Errorf("it has %d times, not once:\n%s", n, e.old)
		}
		text = strings.Replace(text, e.old, e.new, 1)
	}
	_, err := parser.ParseFile(token.NewFileSet(), p.file, text, parser.SkipObjectResolution)
	return []byte(text), err
}
