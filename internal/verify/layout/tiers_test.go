package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestProofTierIsListed checks that docs/evidence/tiers.md lists each test of the proof
// tier, along with the tests that guard the same line by default, and no other tests.
func TestProofTierIsListed(t *testing.T) {
	var listed []string
	text, err := os.ReadFile(filepath.Join(root, "docs/evidence/tiers.md"))
	require.NoError(t, err)
	for row := range strings.Lines(string(text)) {
		cells := strings.Split(row, "|")
		if len(cells) != 4 {
			continue
		}
		pkg := ""
		for _, m := range regexp.MustCompile("`(?:([\\w/-]+): )?(Test\\w+)`").FindAllStringSubmatch(cells[1], -1) {
			if m[1] != "" {
				pkg = m[1]
			}
			listed = append(listed, pkg+": "+m[2])
		}
	}
	slices.Sort(listed)
	require.Equal(t, proofTests(t), listed)
}

// proofTests returns the tests that begin with tier.Proof, sorted.
func proofTests(t *testing.T) (all []string) {
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "Test") && len(f.Body.List) > 0 && isProof(f.Body.List[0]) {
				all = append(all, filepath.ToSlash(dir)+": "+f.Name.Name)
			}
		}
		return err
	})
	require.NoError(t, err)
	require.NotEmpty(t, all)
	slices.Sort(all)
	return all
}

// isProof reports whether a statement is tier.Proof(t).
func isProof(s ast.Stmt) bool {
	expr, ok := s.(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := expr.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	fun, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := fun.X.(*ast.Ident)
	return ok && pkg.Name == "tier" && fun.Sel.Name == "Proof"
}
