package layout

import (
	goast "go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/yuin/goldmark/ast"
	extast "github.com/yuin/goldmark/extension/ast"
)

// model is the package of the model. It has types that are named like those of the code.
const model = verify + "model"

// forDevelopers are the documents whose names all are of this repository, of a package that
// it imports, or of the model. Others name variables of their snippets, settings, and files
// of the server too: there a name counts only if its first part is one of this repository.
var forDevelopers = []string{"ARCHITECTURE.md", "CONTRIBUTING.md", "docs/evidence/ledger.md", "docs/evidence/rules.md", model + "/README.md"}

// past are the documents about what was: they may name what there is no more.
var past = []string{"CHANGELOG.md"}

// names are what the code declares, outside its tests.
type names struct {
	packages map[string]map[string]bool // what each package declares, by its name
	members  map[string]map[string]bool // the methods and fields of each type, by its name
	embedded map[string][]string        // the types in each type
	foreign  map[string]bool            // packages that are imported from elsewhere
	declared map[string]bool            // the names of all these
	texts    map[string]bool            // string literals: keys of metadata, names of metrics
}

func newNames() *names {
	return &names{
		packages: map[string]map[string]bool{}, members: map[string]map[string]bool{}, embedded: map[string][]string{},
		foreign: map[string]bool{}, declared: map[string]bool{}, texts: map[string]bool{},
	}
}

// add adds the names of a file.
func (n *names) add(f *goast.File) {
	declare := func(in map[string]map[string]bool, of, name string) {
		if in[of] == nil {
			in[of] = map[string]bool{}
		}
		if name != "" {
			in[of][name], n.declared[name] = true, true
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *goast.FuncDecl:
			if d.Recv == nil {
				declare(n.packages, f.Name.Name, d.Name.Name)
			} else {
				declare(n.members, typeName(d.Recv.List[0].Type), d.Name.Name)
			}
		case *goast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *goast.ValueSpec:
					for _, name := range s.Names {
						declare(n.packages, f.Name.Name, name.Name)
					}
				case *goast.TypeSpec:
					declare(n.packages, f.Name.Name, s.Name.Name)
					declare(n.members, s.Name.Name, "")
					var fields *goast.FieldList
					switch t := s.Type.(type) {
					case *goast.StructType:
						fields = t.Fields
					case *goast.InterfaceType:
						fields = t.Methods
					default: // an alias, or a type whose underlying type has a name
						n.embedded[s.Name.Name] = append(n.embedded[s.Name.Name], typeName(s.Type))
						continue
					}
					for _, field := range fields.List {
						for _, name := range field.Names {
							declare(n.members, s.Name.Name, name.Name)
						}
						if field.Names == nil {
							n.embedded[s.Name.Name] = append(n.embedded[s.Name.Name], typeName(field.Type))
						}
					}
				}
			}
		}
	}
	for _, i := range f.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		if p == module || strings.HasPrefix(p, module+"/") {
			continue
		}
		n.foreign[strings.TrimSuffix(path.Base(version.ReplaceAllString(p, "")), ".go")] = true
		if i.Name != nil {
			n.foreign[i.Name.Name] = true
		}
	}
	goast.Inspect(f, func(node goast.Node) bool {
		if lit, ok := node.(*goast.BasicLit); ok && lit.Kind == token.STRING {
			if text, err := strconv.Unquote(lit.Value); err == nil {
				n.texts[text] = true
			}
		}
		return true
	})
}

// typeName is the name of a type, without the package, a pointer or parameters.
func typeName(e goast.Expr) string {
	switch e := e.(type) {
	case *goast.Ident:
		return e.Name
	case *goast.StarExpr:
		return typeName(e.X)
	case *goast.SelectorExpr:
		return e.Sel.Name
	case *goast.IndexExpr:
		return typeName(e.X)
	case *goast.IndexListExpr:
		return typeName(e.X)
	}
	return ""
}

// has says whether a type has a method or a field, its own or that of a type in it. Nothing
// is known of a type from elsewhere: it may have anything.
func (n *names) has(typ, member string, above ...string) bool {
	if n.members[typ] == nil {
		return true
	}
	return n.members[typ][member] || slices.ContainsFunc(n.embedded[typ], func(in string) bool {
		return !slices.Contains(above, in) && n.has(in, member, append(above, in)...)
	})
}

var (
	// qualified is a name with a dot: of a package's function or type, or of a method.
	qualified = regexp.MustCompile(`^[A-Za-z]\w*(\.[A-Za-z]\w*){1,2}$`)
	word      = regexp.MustCompile(`^[A-Za-z]\w*$`)
	testNames = regexp.MustCompile(`^(Test|Fuzz|Benchmark|Example)([A-Z]|$)`)
	version   = regexp.MustCompile(`/v\d+$`)
	goFile    = regexp.MustCompile(`(?:^|[^\w./-])((?:[\w.-]+/)*\w+\.go)(?:$|[^\w.-]|\.(?:$|\s))`)
)

// lacks says whether the code does not have what a text between backticks names. A text of
// another shape than that of a name is none. A name whose first part is unknown counts only
// where all names are of this repository. Elsewhere a variable of a snippet, or a field of an
// answer, may be named like a type that no user sees.
func (n *names) lacks(text string, all bool) bool {
	name, _, _ := strings.Cut(text, "(")                                                                                  // as in fence.Open(ctx)
	if !qualified.MatchString(name) || strings.HasSuffix(name, ".go") || n.texts[name] || name == strings.ToUpper(name) { // a subject
		return false
	}
	parts := strings.Split(name, ".")
	first, second := parts[0], parts[1]
	if n.foreign[first] || testNames.MatchString(second) { // another test looks at names of tests
		return false
	}
	declared, typed := n.packages[first], n.members[first] != nil
	switch {
	case declared == nil && !all && !token.IsExported(first):
		return false
	case declared == nil && !typed:
		return all && path.Ext(name) != ".md" && path.Ext(name) != ".mod"
	case declared != nil && declared[second]:
		return len(parts) > 2 && !n.has(second, parts[2])
	case typed && n.has(first, second):
		return false
	}
	return true
}

// code returns the names of the model, those of the other packages, and the files.
func code(t *testing.T) (ofModel, ofOthers *names, files map[string]bool) {
	t.Helper()
	ofModel, ofOthers, files = newNames(), newNames(), map[string]bool{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(file, ".go") {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		files[name], files[path.Base(name)] = true, true
		if strings.HasSuffix(name, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if path.Dir(name) == model {
			ofModel.add(f)
		} else {
			ofOthers.add(f)
		}
		return nil
	})
	require.NoError(t, err)
	return ofModel, ofOthers, files
}

// TestNamesExist: a document names functions, methods, types and files that the code has.
func TestNamesExist(t *testing.T) {
	ofModel, ofOthers, files := code(t)
	rooms := map[string]bool{} // some have tests only
	for f := range files {
		rooms[path.Base(path.Dir(f))] = true
	}
	named := 0
	for document, source := range documents(t) {
		if slices.Contains(past, document) {
			continue
		}
		all := slices.Contains(forDevelopers, document)
		spans(t, source, func(text, column string) {
			here := ofOthers
			if column == "in the model" {
				here = ofModel
				if word.MatchString(text) {
					named++
					assert.True(t, here.declared[text], "%s names %s, which the model does not have", document, text)
				}
			}
			if qualified.MatchString(text) {
				named++
			}
			if ofRooms := document == "ARCHITECTURE.md" || column == "in the rooms of internal"; ofRooms && word.MatchString(text) && !testNames.MatchString(text) {
				named++
				assert.True(t, here.declared[text] || here.packages[text] != nil || rooms[text], "%s names %s, which the code does not have", document, text)
			}
			assert.False(t, here.lacks(text, all), "%s names %s, which the code does not have", document, text)
		})
		for _, line := range prose(t, source) {
			for _, m := range goFile.FindAllStringSubmatch(line, -1) {
				name := m[1]
				first, _, deep := strings.Cut(name, "/")
				_, err := os.Stat(filepath.Join(root, first))
				if name == "nats.go" || !all && (!deep || err != nil) {
					continue
				}
				named++
				assert.True(t, files[name] || files[path.Join(path.Dir(document), name)], "%s names the file %s", document, name)
			}
		}
	}
	require.Greater(t, named, 250)
}

// TestFilesOfRoom: a table of the files of a room has each of them.
func TestFilesOfRoom(t *testing.T) {
	table := regexp.MustCompile("(?m)^\\| file of `(\\w+)` \\|.*\n\\|[-|]+\\|\n((?:\\|.*\n)+)")
	tables := table.FindAllStringSubmatch(documents(t)["ARCHITECTURE.md"], -1)
	require.NotEmpty(t, tables)
	for _, m := range tables {
		found, err := filepath.Glob(filepath.Join(root, "internal", m[1], "*.go"))
		require.NoError(t, err)
		var files []string
		for _, f := range found {
			if f := filepath.Base(f); !strings.HasSuffix(f, "_test.go") && f != "doc.go" {
				files = append(files, f)
			}
		}
		var listed []string
		for row := range strings.Lines(m[2]) {
			listed = append(listed, regexp.MustCompile(`\w+\.go`).FindAllString(strings.Split(row, "|")[1], -1)...)
		}
		require.ElementsMatch(t, files, listed, "the files of internal/%s", m[1])
	}
}

// TestNamesMissing shows what counts as a name that the code does not have.
func TestNamesMissing(t *testing.T) {
	const text = `package room

import "github.com/nats-io/nats.go"

type outer struct{ *inner; size int; conn nats.Conn }
type inner struct{}
type alike = inner
func (i *inner) step() {}
func Do() {}
var key = "room.protocol"
`
	f, err := parser.ParseFile(token.NewFileSet(), "", text, 0)
	require.NoError(t, err)
	n := newNames()
	n.add(f)
	for _, name := range []string{"inner.gone", "outer.gone", "alike.gone", "room.Gone", "room.inner.gone", "room.Do2()", "inner.gone(x)"} {
		assert.True(t, n.lacks(name, true), name)
	}
	for _, name := range []string{
		"inner.step", "outer.step", "outer.size", "alike.step", "room.Do", "room.Do(ctx, 1)", "room.inner.step", "room.protocol",
		"nats.Conn", "nats.go", "room: TestX", "room.TestX", "x.y = 1", "a-b.c", "step", "STREAM.INFO", "$KV.x", "v1.2",
	} {
		assert.False(t, n.lacks(name, true), name)
	}
	assert.True(t, n.lacks("stranger.step", true))
	assert.False(t, n.lacks("stranger.step", false))
	assert.False(t, n.lacks("inner.gone", false))
	for line, file := range map[string]string{
		"see `a/b_test.go`, too": "a/b_test.go", "It is in look.go.": "look.go", "look.go, x": "look.go", "(queue.go)": "queue.go",
		"pkg.go.dev": "", "https://example.org/x/y.go": "", "go.mod": "", "x.gob": "",
	} {
		m := goFile.FindStringSubmatch(line)
		if file == "" {
			assert.Empty(t, m, line)
		} else if assert.NotEmpty(t, m, line) {
			assert.Equal(t, file, m[1])
		}
	}
}

// spans calls fn with each text between backticks, and with the head of its column if it
// stands in a table.
func spans(t *testing.T, source string, fn func(text, column string)) {
	t.Helper()
	visit(t, source, func(n ast.Node) {
		if s, ok := n.(*ast.CodeSpan); ok {
			fn(inline(s, source), column(s, source))
		}
	})
}

// column is the head of the column in which a node stands.
func column(n ast.Node, source string) string {
	for ; n != nil; n = n.Parent() {
		cell, ok := n.(*extast.TableCell)
		if !ok {
			continue
		}
		if _, head := cell.Parent().(*extast.TableHeader); head {
			return ""
		}
		i := 0
		for c := cell.PreviousSibling(); c != nil; c = c.PreviousSibling() {
			i++
		}
		head := cell.Parent().Parent().FirstChild().FirstChild()
		for ; head != nil && i > 0; i-- {
			head = head.NextSibling()
		}
		if head != nil {
			return inline(head, source)
		}
	}
	return ""
}

// prose are the paragraphs, headings and cells of a document, without its markup.
func prose(t *testing.T, source string) []string {
	t.Helper()
	lines := map[string]bool{}
	visit(t, source, func(n ast.Node) {
		switch n.(type) {
		case *ast.Paragraph, *ast.TextBlock, *ast.Heading, *extast.TableCell:
			lines[inline(n, source)] = true
		}
	})
	return slices.Sorted(maps.Keys(lines))
}

// inline is the text of a node.
func inline(n ast.Node, source string) string {
	var b strings.Builder
	for c := n.FirstChild(); c != nil; c = c.NextSibling() {
		if text, ok := c.(*ast.Text); ok {
			b.Write(text.Segment.Value([]byte(source)))
			if text.SoftLineBreak() {
				b.WriteByte(' ')
			}
		} else {
			b.WriteString(inline(c, source))
		}
	}
	return b.String()
}
