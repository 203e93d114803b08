package layout

import (
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// markdown parses pages the way the sites that render them do.
var markdown = goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser()

// TestLinks follows each link in the documents to a file of the repository and, if the link
// names one, to a heading. It skips links to other sites.
func TestLinks(t *testing.T) {
	pages := documents(t)
	followed := 0
	for page, source := range pages {
		visit(t, source, func(n ast.Node) {
			var to string
			switch n := n.(type) {
			case *ast.Link:
				to = string(n.Destination)
			case *ast.Image:
				to = string(n.Destination)
			default:
				return
			}
			target, err := url.Parse(to)
			if !assert.NoError(t, err, "%s links to %s", page, to) || target.Scheme != "" {
				return
			}
			followed++
			file := page
			if target.Path != "" {
				file = path.Join(path.Dir(page), target.Path)
			}
			_, err = os.Stat(filepath.Join(root, file))
			assert.NoError(t, err, "%s links to %s", page, to)
			if target.Fragment != "" && strings.HasSuffix(file, ".md") {
				assert.Contains(t, anchors(t, pages[file]), target.Fragment, "%s links to %s", page, to)
			}
		})
	}
	require.Positive(t, followed)
}

// TestBlocksNameTheirLanguage checks that each code block names its language. Sites use it
// for highlighting, and tests use it to find the blocks that they compile or run.
func TestBlocksNameTheirLanguage(t *testing.T) {
	blocks := 0
	for page, source := range documents(t) {
		visit(t, source, func(n ast.Node) {
			switch n := n.(type) {
			case *ast.FencedCodeBlock:
				blocks++
				assert.NotEmpty(t, n.Language([]byte(source)), "%s has a block without a language:\n%s", page, n.Lines().Value([]byte(source)))
			case *ast.CodeBlock:
				assert.Fail(t, "a block by indentation names no language", "%s:\n%s", page, n.Lines().Value([]byte(source)))
			}
		})
	}
	require.Positive(t, blocks)
}

func parse(source string) ast.Node { return markdown.Parse(text.NewReader([]byte(source))) }

func visit(t *testing.T, source string, fn func(ast.Node)) {
	t.Helper()
	err := ast.Walk(parse(source), func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			fn(n)
		}
		return ast.WalkContinue, nil
	})
	require.NoError(t, err)
}

// anchors returns the names by which links refer to a page's headings.
func anchors(t *testing.T, source string) (names []string) {
	t.Helper()
	visit(t, source, func(n ast.Node) {
		if h, ok := n.(*ast.Heading); ok {
			names = append(names, anchor(plain(h, source)))
		}
	})
	return names
}

// anchor returns the name that GitHub gives a heading.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, heading)
}

var markup = regexp.MustCompile("[`*]")

// plain returns the text of a heading.
func plain(h *ast.Heading, source string) string {
	return markup.ReplaceAllString(string(h.Lines().Value([]byte(source))), "")
}
