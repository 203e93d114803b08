package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A label marks a line that safety depends on. It is a comment at the end of the line:
//
//	if now >= end { //safety:late-answer
//
// The comment near the line says why the line matters, whereas the label is only its name. A
// mutant refers to the line by its label, so it still applies after the line moves to another
// file or a variable in it is renamed.

var labeled = regexp.MustCompile(`//safety:([a-z0-9-]+)\s*$`)

// place is the position of a label.
type place struct {
	file string // relative to the module's root
	line int
}

// unlabeled lists the directories without production code.
var unlabeled = []string{"internal/verify", "bench", "examples", "docs", ".git"}

// labels finds the labels in the tree. Each label may occur only once.
func labels(root string) (map[string]place, error) {
	found := map[string]place{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if d.IsDir() {
			for _, skipped := range unlabeled {
				if name == skipped {
					return filepath.SkipDir
				}
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "//safety:") {
			return err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		return labelsIn(found, name, fset, file)
	})
	return found, err
}

// labelsIn adds a file's labels to those found before.
func labelsIn(found map[string]place, name string, fset *token.FileSet, file *ast.File) error {
	for _, group := range file.Comments {
		for _, c := range group.List {
			if !strings.Contains(c.Text, "//safety:") {
				continue
			}
			m := labeled.FindStringSubmatch(c.Text)
			here := place{name, fset.Position(c.Pos()).Line}
			if m == nil {
				return fmt.Errorf("%s:%d: a label ends its line and has small letters, digits and hyphens: %s", here.file, here.line, c.Text)
			}
			if before, twice := found[m[1]]; twice {
				return fmt.Errorf("label %s stands at %s:%d and at %s:%d", m[1], before.file, before.line, here.file, here.line)
			}
			found[m[1]] = here
		}
	}
	return nil
}
