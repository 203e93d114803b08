package main

import (
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one weakening of the library.
type mutant struct {
	name    string // kebab case, the part it is about first
	weak    string // what the weakened library does
	offends string // the paragraph of the protocol, by its heading
	file    string // from the module's root
	edits   []edit
	test    string // what has to fail: package directory, dot, test, as go test names it
}

// edit replaces a text that the file has exactly once.
type edit struct{ old, new string }

// one is the edit of most mutants.
func one(old, new string) []edit { return []edit{{old, new}} }

// mutants are all of them.
var mutants = slices.Concat(claimMutants, leaseMutants, releaseMutants, queueMutants, rwMutants, storeMutants, bucketMutants, overdueMutants, lockctlMutants)

// apply returns the weakened file. The error says why the mutant no longer fits.
func (m mutant) apply(root string) ([]byte, error) {
	src, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		return nil, err
	}
	text := string(src)
	for _, e := range m.edits {
		if n := strings.Count(text, e.old); n != 1 {
			return nil, fmt.Errorf("%s has %d times, not once:\n%s", m.file, n, e.old)
		}
		text = strings.Replace(text, e.old, e.new, 1)
	}
	if text == string(src) {
		return nil, fmt.Errorf("it changes nothing")
	}
	if _, err := parser.ParseFile(token.NewFileSet(), m.file, text, parser.SkipObjectResolution); err != nil {
		return nil, err
	}
	return []byte(text), nil
}

// target splits the name of the test: the package's directory, the test.
func (m mutant) target() (dir, test string) {
	dir, test, _ = strings.Cut(m.test, ".")
	return dir, test
}
