package prose

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// survey returns all findings below a directory.
func survey(root string) ([]finding, error) {
	var found []finding
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || name == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		isGo := strings.HasSuffix(name, ".go")
		if !isGo && !strings.HasSuffix(name, ".md") {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		of, err := inspect(filepath.ToSlash(file), source)
		found = append(found, of...)
		return err
	})
	return found, err
}

// inspect returns the findings in one file.
func inspect(file string, source []byte) ([]finding, error) {
	var passages []passage
	var found []finding
	if strings.HasSuffix(file, ".md") {
		passages, found = readMarkdown(file, source)
	} else {
		var err error
		if passages, err = readGo(file, source); err != nil {
			return nil, err
		}
	}
	for _, p := range passages {
		found = append(found, check(p)...)
	}
	return found, nil
}

// key is a finding's entry in the baseline: its rule, a digest of its text, and the
// beginning of the text for the reader. Where the text stands is not in it.
func (f finding) key() string {
	sum := sha256.Sum256([]byte(strings.ToLower(strings.Join(strings.Fields(f.text), " "))))
	excerpt := []rune(f.text)
	if len(excerpt) > 72 {
		excerpt = append(excerpt[:72], '…')
	}
	return f.rule + " " + hex.EncodeToString(sum[:6]) + " " + string(excerpt)
}

// digest is the part of an entry that is compared.
func digest(entry string) string {
	fields := strings.SplitN(entry, " ", 3)
	return strings.Join(fields[:min(2, len(fields))], " ")
}

// entries are the lines of a baseline.
func entries(list string) []string {
	return slices.DeleteFunc(strings.Split(list, "\n"), func(line string) bool {
		return line == "" || strings.HasPrefix(line, "#")
	})
}

// compare returns the findings that the list does not have, the entries that still
// have a finding, and those without one.
func compare(found []finding, list []string) (fresh []finding, kept, stale []string) {
	known := map[string]bool{}
	for _, e := range list {
		known[digest(e)] = true
	}
	today := map[string]bool{}
	for _, f := range found {
		d := digest(f.key())
		today[d] = true
		if !known[d] {
			fresh = append(fresh, f)
		}
	}
	for _, e := range list {
		if today[digest(e)] {
			kept = append(kept, e)
		} else {
			stale = append(stale, e)
		}
	}
	return fresh, kept, stale
}
