package prose

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	east "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/text"
)

var markdown = goldmark.New(goldmark.WithExtensions(extension.Table))

// maxEmphasis is how many words may be emphasised: more of them are a quotation.
const maxEmphasis = 5

// readMarkdown returns the passages of a document, and the findings in its lines.
func readMarkdown(file string, source []byte) ([]passage, []finding) {
	var passages []passage
	var long []finding
	doc := markdown.Parser().Parse(text.NewReader(source))
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering || n.Type() != ast.TypeBlock {
			return ast.WalkContinue, nil
		}
		p := passage{file: file, kind: sentences}
		switch n := n.(type) {
		case *ast.Paragraph, *ast.TextBlock:
		case *ast.Heading:
			p.kind = title
		case *east.TableCell:
			if _, header := n.Parent().(*east.TableHeader); header {
				p.kind = title
			}
		default:
			return ast.WalkContinue, nil
		}
		if lines := n.Lines(); lines != nil && lines.Len() > 0 {
			p.line = lineOf(source, lines.At(0).Start)
			if _, cell := n.(*east.TableCell); !cell {
				long = append(long, longLines(file, source, lines)...)
			}
		}
		var b strings.Builder
		inline(&b, n, source)
		p.text = plain(b.String())
		passages = append(passages, p)
		return ast.WalkSkipChildren, nil
	})
	return passages, long
}

// inline writes the prose of a block.
func inline(b *strings.Builder, n ast.Node, source []byte) {
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		switch c := c.(type) {
		case *ast.Text:
			b.Write(c.Value(source))
			if c.SoftLineBreak() || c.HardLineBreak() {
				b.WriteByte('\n')
			}
		case *ast.String:
			b.Write(c.Value)
		case *ast.CodeSpan, *ast.AutoLink:
			b.WriteString(code)
		case *ast.RawHTML:
		case *ast.Emphasis:
			var inner strings.Builder
			inline(&inner, c, source)
			if words(inner.String()) > maxEmphasis {
				b.WriteString(quote)
			} else {
				b.WriteString(inner.String())
			}
		default: // links, images: their text
			inline(b, c, source)
		}
	}
}

var target = regexp.MustCompile(`\]\([^)]*\)`)

// longLines are the lines of a block of prose that are too long. The target of a
// link cannot be broken, and is not counted.
func longLines(file string, source []byte, lines *text.Segments) []finding {
	var found []finding
	for i := range lines.Len() {
		start := lines.At(i).Start
		begin := bytes.LastIndexByte(source[:start], '\n') + 1
		line := string(source[begin:])
		line, _, _ = strings.Cut(line, "\n")
		columns := utf8.RuneCountInString(target.ReplaceAllString(line, "]()"))
		if columns > maxColumns {
			found = append(found, finding{"long-line", file, lineOf(source, start), plain(line), "the line has " + strconv.Itoa(columns) + " columns"})
		}
	}
	return found
}

func lineOf(source []byte, offset int) int { return bytes.Count(source[:offset], []byte("\n")) + 1 }
