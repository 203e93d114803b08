package prose

import (
	"io/fs"
	"os"
	"path/filepath"
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
