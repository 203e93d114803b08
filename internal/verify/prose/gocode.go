package prose

import (
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// readGo returns the passages of a Go file: its comments, and outside of tests the
// literals that read like sentences.
func readGo(file string, source []byte) ([]passage, error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	r := goReader{file: file, set: set, names: map[*ast.CommentGroup]string{}}
	ast.Inspect(tree, r.name)
	for _, group := range tree.Comments {
		r.comment(group)
	}
	if !strings.HasSuffix(file, "_test.go") {
		ast.Inspect(tree, r.literal)
	}
	return r.passages, nil
}

type goReader struct {
	file     string
	set      *token.FileSet
	names    map[*ast.CommentGroup]string // the names that doc comments document
	passages []passage
}

// name notes the names that doc comments begin with.
func (r *goReader) name(n ast.Node) bool {
	note := func(doc *ast.CommentGroup, names ...*ast.Ident) {
		if doc != nil && len(names) > 0 {
			r.names[doc] = names[0].Name
		}
	}
	switch n := n.(type) {
	case *ast.FuncDecl:
		note(n.Doc, n.Name)
	case *ast.GenDecl:
		if len(n.Specs) == 0 {
			break
		}
		switch s := n.Specs[0].(type) {
		case *ast.TypeSpec:
			note(n.Doc, s.Name)
		case *ast.ValueSpec:
			note(n.Doc, s.Names...)
		}
	case *ast.TypeSpec:
		note(n.Doc, n.Name)
	case *ast.ValueSpec:
		note(n.Doc, n.Names...)
	case *ast.Field:
		note(n.Doc, n.Names...)
	}
	return true
}

func (r *goReader) add(pos token.Pos, k kind, text string) {
	if text = plain(text); words(text) > 0 {
		r.passages = append(r.passages, passage{r.file, r.set.Position(pos).Line, k, text})
	}
}

func (r *goReader) comment(group *ast.CommentGroup) {
	text := group.Text()
	if strings.HasPrefix(text, "Output:") || strings.HasPrefix(text, "Unordered output:") {
		return
	}
	if name := r.names[group]; name != "" {
		if rest, found := strings.CutPrefix(text, name); found {
			text = code + rest
		}
	}
	var parser comment.Parser
	r.blocks(group.Pos(), parser.Parse(text).Content)
}

func (r *goReader) blocks(pos token.Pos, blocks []comment.Block) {
	for _, b := range blocks {
		switch b := b.(type) {
		case *comment.Paragraph:
			r.add(pos, sentences, flat(b.Text))
		case *comment.Heading:
			r.add(pos, title, flat(b.Text))
		case *comment.List:
			for _, item := range b.Items {
				r.blocks(pos, item.Content)
			}
		}
	}
}

func flat(all []comment.Text) string {
	var b strings.Builder
	for _, t := range all {
		switch t := t.(type) {
		case comment.Plain:
			b.WriteString(string(t))
		case comment.Italic:
			b.WriteString(string(t))
		case *comment.Link:
			if t.Auto {
				b.WriteString(code)
			} else {
				b.WriteString(flat(t.Text))
			}
		case *comment.DocLink:
			b.WriteString(code)
		}
	}
	return b.String()
}

// minWords is how many words a literal has that is prose and not a name.
const minWords = 4

var (
	looksLikeCode = regexp.MustCompile(`:=|==|!=|&&|\(\)|\{\n|;\n|\t|func |\bif .*\{|\$JS|^https?:|<svg|</`)
	verb          = regexp.MustCompile(`%[-+# 0-9.*\[\]]*[a-zA-Z]|\$\{[^}]*\}|\{\{[^}]*\}\}`)
)

// literal reads strings, joined ones as a whole, and the texts in struct tags.
func (r *goReader) literal(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ImportSpec:
		return false
	case *ast.Field:
		if n.Tag != nil {
			raw, _ := strconv.Unquote(n.Tag.Value)
			for _, key := range []string{"help", "doc"} {
				r.text(n.Tag.Pos(), reflect.StructTag(raw).Get(key))
			}
		}
		if n.Type != nil {
			ast.Inspect(n.Type, r.literal)
		}
		return false
	case *ast.BinaryExpr:
		if s, found := joined(n); found {
			r.text(n.Pos(), s)
			return false
		}
	case *ast.BasicLit:
		if s, found := joined(n); found {
			r.text(n.Pos(), s)
		}
	}
	return true
}

func (r *goReader) text(pos token.Pos, s string) {
	if looksLikeCode.MatchString(s) {
		return
	}
	for _, part := range parts(verb.ReplaceAllString(s, code)) {
		if words(strings.ReplaceAll(plain(part), code, "")) >= minWords {
			r.add(pos, printed, part)
		}
	}
}

// parts are the paragraphs of a text that is printed. An indented line is the row of
// a table: a part by itself.
func parts(s string) []string {
	var all []string
	open := false
	for line := range strings.Lines(s) {
		indented := strings.HasPrefix(line, "  ")
		switch {
		case strings.TrimSpace(line) == "":
			open = false
			continue
		case open && !indented:
			all[len(all)-1] += line
		default:
			all = append(all, line)
		}
		open = !indented
	}
	return all
}

// joined is the text of a literal, or of literals that are added.
func joined(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		s, err := strconv.Unquote(e.Value)
		return s, err == nil
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return "", false
		}
		x, fx := joined(e.X)
		y, fy := joined(e.Y)
		switch {
		case fx && fy:
			return x + y, true
		case fx:
			return x + code, true
		case fy:
			return code + y, true
		}
	case *ast.ParenExpr:
		return joined(e.X)
	}
	return "", false
}
