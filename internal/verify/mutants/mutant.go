package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one weakening of the library: an operator applied to a labeled line.
type mutant struct {
	label    string // the line's label
	operator string // what is done to the line
	weak     string // how the weakened library behaves
	test     string // the test that must fail, as directory.Test in go test's notation
	beside   string // a test in the line's directory that needs no server, must fail, and decides the verdict
}

// name returns the mutant's unique name.
func (m mutant) name() string {
	return m.label + ":" + strings.ReplaceAll(m.operator, " ", "-")
}

// mutants lists all mutants.
var mutants = slices.Concat(storeMutants, bucketMutants, lockctlMutants, roomMutants, cohortMutants, handMutants, semaphoreMutants, fenceMutants, partitionMutants)

// apply returns the file's name and its weakened text. The error says why the mutant cannot be
// applied.
func (m mutant) apply(root string, labels map[string]place) (file string, text []byte, err error) {
	at, found := labels[m.label]
	if !found {
		return "", nil, errors.New("no line has the label")
	}
	src, err := os.ReadFile(filepath.Join(root, at.file))
	if err != nil {
		return "", nil, err
	}
	text, err = weaken(src, at.line, m.operator)
	if err == nil && string(text) == string(src) {
		err = errors.New("it changes nothing")
	}
	if err != nil {
		return "", nil, fmt.Errorf("%s: %w", at.file, err)
	}
	return at.file, text, nil
}

// named identifies a test by its package's directory and its name.
type named struct{ dir, test string }

func (n named) String() string { return n.dir + "." + n.test }

// tests returns all tests that the mutant names.
func (m mutant) tests(labels map[string]place) []named {
	dir, test, _ := strings.Cut(m.test, ".")
	all := []named{{dir, test}}
	if m.beside != "" {
		all = append(all, named{path.Dir(labels[m.label].file), m.beside})
	}
	return all
}

// judges returns the tests that must fail: the one next to the line and, if all is set, the
// other one too.
func (m mutant) judges(labels map[string]place, all bool) []named {
	tests := m.tests(labels)
	slices.Reverse(tests) // the fast one first
	if m.beside != "" && !all {
		return tests[:1]
	}
	return tests
}
