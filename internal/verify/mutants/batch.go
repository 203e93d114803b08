package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A batch is a copy of the library that contains many mutants, so that each test package is built
// once instead of once per mutant. A function with labels exists several times: unchanged, and
// weakened by each of its mutants. A function with the original name calls the version that the
// environment selects. Labels outside functions cannot be part of a batch, so their mutants are
// built one at a time.

// chosenMutant is the environment variable that holds the number of the selected mutant. 0, or no
// value, selects the unchanged library.
const chosenMutant = "NATSLOCK_MUTANT"

// batch is the library with many mutants.
type batch struct {
	overlay  string
	numbers  map[string]int    // the mutants' numbers, from 1
	binaries map[string]string // the test binary of each package
}

// newBatch writes the files of a batch.
func newBatch(root, tmp string, places map[string]place, all []mutant) (*batch, error) {
	b := &batch{overlay: filepath.Join(tmp, "batch.json"), numbers: map[string]int{}, binaries: map[string]string{}}
	files := map[string]*batched{}
	for i, m := range all {
		at, found := places[m.label]
		if !found {
			continue
		}
		f := files[at.file]
		if f == nil {
			src, err := os.ReadFile(filepath.Join(root, at.file))
			if err != nil {
				return nil, err
			}
			f = &batched{src: src, added: map[string][]int{}}
			files[at.file] = f
		}
		if f.add(i+1, at.line, m.operator) {
			b.numbers[m.name()] = i + 1
		}
	}
	replace := map[string]string{}
	write := func(name string, text []byte) error {
		to := filepath.Join(tmp, "batch"+strconv.Itoa(len(replace))+".go")
		replace[filepath.Join(root, name)] = to
		return os.WriteFile(to, text, 0o600)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		if len(f.added) == 0 {
			continue
		}
		text, pkg, err := f.text()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if err := write(name, text); err != nil {
			return nil, err
		}
		chooser := path.Join(path.Dir(name), "zz_mutant.go")
		if replace[filepath.Join(root, chooser)] == "" {
			if err := write(chooser, fmt.Appendf(nil, chooserText, pkg, chosenMutant)); err != nil {
				return nil, err
			}
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, err
	}
	return b, os.WriteFile(b.overlay, list, 0o600)
}

// chooserText is the file that tells a package's functions which mutant is selected.
const chooserText = `package %s

import mutantOS "os"

var mutantChosen = func() (n int) {
	for _, c := range mutantOS.Getenv(%q) {
		n = 10*n + int(c-'0')
	}
	return n
}()
`

// batched is a file with the mutants of its functions.
type batched struct {
	src   []byte
	added map[string][]int // the numbers of a function's mutants, by the function's position
	tail  bytes.Buffer
}

// add adds a weakened copy of the function at a line. It returns false if that is not possible.
func (f *batched) add(number, line int, operator string) bool {
	weak, err := weaken(f.src, line, operator)
	if err != nil {
		return false
	}
	fset := token.NewFileSet()
	before, d := functionAt(fset, f.src, line)
	if d == nil || d.Recv == nil && (d.Name.Name == "init" || d.Name.Name == "main") {
		return false
	}
	from, to := before(d.Pos()), before(d.End())
	grown := len(weak) - len(f.src)
	key := fmt.Sprint(from)
	f.added[key] = append(f.added[key], number)
	name := before(d.Name.Pos())
	fmt.Fprintf(&f.tail, "\n%s%s%s\n", weak[from:name], called(d.Name.Name, number), weak[before(d.Name.End()):to+grown])
	return true
}

// called returns the name of a function's mutant. Number 0 is the unchanged function.
func called(name string, number int) string { return name + "_mutant" + strconv.Itoa(number) }

// functionAt returns the declaration of the function around a line, without its comment, and a
// function that converts positions to offsets.
func functionAt(fset *token.FileSet, src []byte, line int) (func(token.Pos) int, *ast.FuncDecl) {
	file, err := parser.ParseFile(fset, "", src, parser.SkipObjectResolution)
	if err != nil {
		return nil, nil
	}
	offset := func(p token.Pos) int { return fset.Position(p).Offset }
	for _, d := range file.Decls {
		if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil && fset.Position(d.Pos()).Line <= line && line <= fset.Position(d.End()).Line {
			return offset, d
		}
	}
	return nil, nil
}

// text returns the file with all its mutants, and its package's name.
func (f *batched) text() (text []byte, pkg string, err error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", f.src, parser.SkipObjectResolution)
	if err != nil {
		return nil, "", err
	}
	at := func(p token.Pos) int { return fset.Position(p).Offset }
	done := 0
	var out, calls bytes.Buffer
	for _, d := range file.Decls {
		d, ok := d.(*ast.FuncDecl)
		if !ok || f.added[fmt.Sprint(at(d.Pos()))] == nil {
			continue
		}
		out.Write(f.src[done:at(d.Name.Pos())])
		out.WriteString(called(d.Name.Name, 0))
		done = at(d.Name.End())
		calls.WriteString(dispatch(d, f.added[fmt.Sprint(at(d.Pos()))], func(n ast.Node) string { return string(f.src[at(n.Pos()):at(n.End())]) }))
	}
	out.Write(f.src[done:])
	out.Write(calls.Bytes())
	out.Write(f.tail.Bytes())
	return out.Bytes(), file.Name.Name, nil
}

// dispatch returns the function that calls the version with the selected mutant.
func dispatch(d *ast.FuncDecl, numbers []int, text func(ast.Node) string) string {
	var receiver, of, types, typeArgs, params, args, results string
	if d.Recv != nil {
		receiver, of = "(r0 "+text(d.Recv.List[0].Type)+") ", "r0."
	}
	if d.Type.TypeParams != nil {
		types = text(d.Type.TypeParams)
		var names []string
		for _, field := range d.Type.TypeParams.List {
			for _, n := range field.Names {
				names = append(names, n.Name)
			}
		}
		typeArgs = "[" + strings.Join(names, ", ") + "]"
	}
	n := 0
	for _, field := range d.Type.Params.List {
		for range max(len(field.Names), 1) {
			params += fmt.Sprintf("p%d %s, ", n, text(field.Type))
			args += fmt.Sprintf("p%d", n)
			if _, variadic := field.Type.(*ast.Ellipsis); variadic {
				args += "..."
			}
			args += ", "
			n++
		}
	}
	give := ""
	if d.Type.Results != nil {
		give = "return "
		for _, field := range d.Type.Results.List {
			results += strings.Repeat(text(field.Type)+", ", max(len(field.Names), 1))
		}
		results = " (" + results + ")"
	}
	call := func(number int) string {
		return fmt.Sprintf("%s%s%s%s(%s)", give, of, called(d.Name.Name, number), typeArgs, args)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "\nfunc %s%s%s(%s)%s {\n\tswitch mutantChosen {\n", receiver, d.Name.Name, types, params, results)
	for _, number := range numbers {
		fmt.Fprintf(&out, "\tcase %d:\n\t\t%s\n", number, call(number))
		if give == "" {
			out.WriteString("\t\treturn\n")
		}
	}
	fmt.Fprintf(&out, "\t}\n\t%s\n}\n", call(0))
	return out.String()
}

// build builds a package's tests with the mutants.
func (b *batch) build(ctx context.Context, root, tmp, dir string) (binary string, err error) {
	binary = filepath.Join(tmp, strings.Map(plain, dir)+".test")
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay="+b.overlay, "-o", binary, "./"+dir)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the tests of %s with the mutants: %w\n%s", dir, err, out)
	}
	return binary, nil
}
