package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
)

// An operator weakens the statement or composite literal element that begins on the labeled
// line:
//
//	never, always    its condition is false, or true
//	never 2          the second operand that && or || joins in its condition is false
//	drop             the statement is not executed
//	zero Field       the field is left out of the composite literal on the line
//	keep 1           the first a+b (any binary operator) or min(a, b) on the line becomes a
//	keep 2 of -      the first a-b on the line becomes b
//	is EXPR          what it assigns or returns is EXPR
//	plus EXPR        what it assigns or returns is larger by EXPR
//	arg 2 is EXPR    the second argument of the first call on the line is EXPR
//
// EXPR uses no names from this repository, so that renaming an identifier breaks no mutant.
// The old code is still evaluated or compiled where a variable would otherwise be unused.

// weaken returns the text of a file with one line weakened.
func weaken(text []byte, line int, operator string) ([]byte, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	t := target{text: text, fset: fset, file: file}
	ast.Inspect(file, func(n ast.Node) bool {
		if n != nil && fset.Position(n.Pos()).Line == line {
			t.nodes = append(t.nodes, n)
		}
		return true
	})
	if err := t.apply(strings.Fields(operator)); err != nil {
		return nil, fmt.Errorf("%s: %w", operator, err)
	}
	if _, err := parser.ParseFile(fset, "", t.out, parser.SkipObjectResolution); err != nil {
		return nil, fmt.Errorf("%s: %w", operator, err)
	}
	return t.out, nil
}

// target is a line to weaken.
type target struct {
	text  []byte
	fset  *token.FileSet
	file  *ast.File
	nodes []ast.Node // the nodes that begin on the line, outermost first
	out   []byte
}

var errNoTarget = errors.New("the line has nothing that this operator applies to")

func (t *target) apply(op []string) error {
	if len(op) == 0 {
		return errNoTarget
	}
	verb, args := op[0], op[1:]
	switch verb {
	case "never", "always":
		return t.decide(verb == "always", args)
	case "drop":
		return t.drop()
	case "zero":
		return t.zero(strings.Join(args, " "))
	case "keep":
		return t.keep(args)
	case "is", "plus":
		return t.replace(t.value(), verb, args)
	case "arg":
		return t.argument(args)
	}
	return errors.New("there is no such operator")
}

// edit replaces part of the file.
func (t *target) edit(from, to token.Pos, with string) error {
	a, b := t.fset.Position(from).Offset, t.fset.Position(to).Offset
	t.out = append(append(append([]byte{}, t.text[:a]...), with...), t.text[b:]...)
	return nil
}

func (t *target) source(n ast.Node) string {
	return string(t.text[t.fset.Position(n.Pos()).Offset:t.fset.Position(n.End()).Offset])
}

// first returns the outermost node of type T on the line that fits.
func first[T ast.Node](t *target, fits func(T) bool) (n T, found bool) {
	for _, node := range t.nodes {
		if v, ok := node.(T); ok && fits(v) {
			return v, true
		}
	}
	return n, false
}

// whole returns the statement on the line. If there is none, it returns the literal's element
// or the declaration, or, failing that, the expression.
func (t *target) whole() ast.Node {
	if s, ok := first(t, func(s ast.Stmt) bool { _, block := s.(*ast.BlockStmt); return !block }); ok {
		if d, isDecl := s.(*ast.DeclStmt); !isDecl {
			return s
		} else if g, ok := d.Decl.(*ast.GenDecl); ok && len(g.Specs) == 1 {
			return g.Specs[0]
		}
	}
	if s, ok := first(t, func(*ast.ValueSpec) bool { return true }); ok {
		return s
	}
	if kv, ok := first(t, func(*ast.KeyValueExpr) bool { return true }); ok {
		return kv
	}
	if e, ok := first(t, func(ast.Expr) bool { return true }); ok {
		return e
	}
	return nil
}

// values returns what the line assigns, returns or gives to a field.
func (t *target) values() []ast.Expr {
	switch n := t.whole().(type) {
	case *ast.AssignStmt:
		return n.Rhs
	case *ast.ReturnStmt:
		return n.Results
	case *ast.ValueSpec:
		return n.Values
	case *ast.KeyValueExpr:
		return []ast.Expr{n.Value}
	case *ast.RangeStmt:
		return []ast.Expr{n.X}
	case *ast.SwitchStmt:
		if a, ok := n.Init.(*ast.AssignStmt); ok {
			return a.Rhs
		}
	case *ast.IfStmt:
		if a, ok := n.Init.(*ast.AssignStmt); ok {
			return a.Rhs
		}
	}
	return nil
}

func (t *target) value() ast.Expr {
	if v := t.values(); len(v) > 0 {
		return v[0]
	}
	return nil
}

// conditions returns the line's conditions. A case may have several.
func (t *target) conditions() []ast.Expr {
	switch n := t.whole().(type) {
	case *ast.IfStmt:
		return []ast.Expr{n.Cond}
	case *ast.ForStmt:
		return []ast.Expr{n.Cond}
	case *ast.CaseClause:
		return n.List
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); ok && len(call.Args) > 0 {
			return call.Args[:1]
		}
	case *ast.CallExpr:
		if len(n.Args) > 0 {
			return n.Args[:1]
		}
	}
	for _, v := range t.values() {
		if decides(v) {
			return []ast.Expr{v}
		}
	}
	return nil
}

// decides reports whether an expression looks like a condition.
func decides(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return decides(e.X)
	case *ast.UnaryExpr:
		return e.Op == token.NOT
	case *ast.BinaryExpr:
		return e.Op == token.LAND || e.Op == token.LOR || e.Op.Precedence() == token.EQL.Precedence()
	}
	return false
}

// operands returns the operands that the outermost && or || joins.
func operands(e ast.Expr) []ast.Expr {
	for p, ok := e.(*ast.ParenExpr); ok; p, ok = e.(*ast.ParenExpr) {
		e = p.X
	}
	top, ok := e.(*ast.BinaryExpr)
	if !ok || top.Op != token.LAND && top.Op != token.LOR {
		return []ast.Expr{e}
	}
	var all []ast.Expr
	var flatten func(e ast.Expr)
	flatten = func(e ast.Expr) {
		if b, ok := e.(*ast.BinaryExpr); ok && b.Op == top.Op {
			flatten(b.X)
			flatten(b.Y)
			return
		}
		all = append(all, e)
	}
	flatten(top)
	return all
}

// decide makes the condition, or one of its operands, true or false. The old code stays, so
// that its variables are still used.
func (t *target) decide(so bool, args []string) error {
	conditions := t.conditions()
	if len(args) > 0 && len(conditions) > 0 {
		of := operands(conditions[0])
		n, err := number(args[0], len(of))
		if err != nil {
			return err
		}
		conditions = of[n : n+1]
	}
	if len(conditions) == 0 || conditions[0] == nil {
		return errNoTarget
	}
	with := "(false && (%s))"
	if so {
		with = "(true || (%s))"
	}
	texts := make([]string, len(conditions))
	for i, c := range conditions {
		texts[i] = fmt.Sprintf(with, t.source(c))
	}
	return t.edit(conditions[0].Pos(), conditions[len(conditions)-1].End(), strings.Join(texts, ", "))
}

func (t *target) drop() error {
	s, ok := t.whole().(ast.Stmt)
	if !ok {
		return errNoTarget
	}
	if a, ok := s.(*ast.AssignStmt); ok && a.Tok == token.DEFINE {
		return errNoTarget
	}
	return t.edit(s.Pos(), s.End(), "if false { "+t.source(s)+" }")
}

func (t *target) zero(field string) error {
	kv, ok := first(t, func(kv *ast.KeyValueExpr) bool { return t.source(kv.Key) == field })
	if !ok {
		return errNoTarget
	}
	end := kv.End()
	if t.text[t.fset.Position(end).Offset] == ',' {
		end++
	}
	if err := t.edit(kv.Pos(), end, ""); err != nil {
		return err
	}
	// Otherwise a variable or import that is used nowhere else would not compile.
	at := t.fset.Position(t.statementAround(kv)).Offset
	unused := "_ = func() any { return " + t.source(kv.Value) + " }; "
	t.out = append(append(append([]byte{}, t.out[:at]...), unused...), t.out[at:]...)
	return nil
}

// statementAround returns the start of the innermost statement of a block that contains n.
func (t *target) statementAround(n ast.Node) (at token.Pos) {
	ast.Inspect(t.file, func(outer ast.Node) bool {
		var list []ast.Stmt
		switch outer := outer.(type) {
		case *ast.BlockStmt:
			list = outer.List
		case *ast.CaseClause:
			list = outer.Body
		case *ast.CommClause:
			list = outer.Body
		}
		for _, s := range list {
			if s.Pos() <= n.Pos() && n.End() <= s.End() {
				at = s.Pos()
			}
		}
		return true
	})
	return at
}

func (t *target) keep(args []string) error {
	if len(args) != 1 && (len(args) != 3 || args[1] != "of") {
		return errNoTarget
	}
	var of []ast.Expr
	_, ok := first(t, func(e ast.Expr) bool {
		switch e := e.(type) {
		case *ast.BinaryExpr:
			of = []ast.Expr{e.X, e.Y}
			return len(args) == 1 || e.Op.String() == args[2]
		case *ast.CallExpr:
			name := t.source(e.Fun)
			of = e.Args
			return (name == "min" || name == "max") && (len(args) == 1 || name == args[2])
		}
		return false
	})
	if !ok {
		return errNoTarget
	}
	n, err := number(args[0], len(of))
	if err != nil {
		return err
	}
	// Replacing from the first operand to the last keeps a call's name and parentheses.
	return t.edit(of[0].Pos(), of[len(of)-1].End(), "("+t.source(of[n])+")")
}

func (t *target) argument(args []string) error {
	call, ok := first(t, func(c *ast.CallExpr) bool { return len(c.Args) > 0 })
	if !ok || len(args) < 3 {
		return errNoTarget
	}
	n, err := number(args[0], len(call.Args))
	if err != nil {
		return err
	}
	return t.replace(call.Args[n], args[1], args[2:])
}

func (t *target) replace(e ast.Expr, verb string, expr []string) error {
	with := strings.Join(expr, " ")
	if e == nil || with == "" {
		return errNoTarget
	}
	switch verb {
	case "is":
		end := e.End()
		if all := t.values(); len(all) > 1 && all[0] == e { // replace everything that is assigned or returned
			end = all[len(all)-1].End()
		}
		return t.edit(e.Pos(), end, with)
	case "plus":
		return t.edit(e.Pos(), e.End(), "("+t.source(e)+" + "+with+")")
	}
	return errNoTarget
}

// number parses a number, which counts from 1, and returns it as an index.
func number(s string, of int) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > of {
		return 0, fmt.Errorf("there are %d to choose from", of)
	}
	return n - 1, nil
}
