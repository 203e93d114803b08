package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOperators weakens one line after another.
func TestOperators(t *testing.T) {
	for _, c := range []struct{ line, operator, want string }{
		{`if a && b || c {}`, "never", `if (false && (a && b || c)) {}`},
		{`if a && b || c {}`, "always 2", `if a && b || (true || (c)) {}`},
		{`if x := f(); !x {}`, "always", `if x := f(); (true || (!x)) {}`},
		{`for a < b {}`, "never", `for (false && (a < b)) {}`},
		{`return x, a == b`, "always", `return x, (true || (a == b))`},
		{`x := a && !b`, "never 2", `x := a && (false && (!b))`},
		{`judge(a > b, "name")`, "always", `judge((true || (a > b)), "name")`},
		{`delete(m, k)`, "drop", `if false { delete(m, k) }`},
		{`return err`, "drop", `if false { return err }`},
		{`x = y`, "drop", `if false { x = y }`},
		{`f(T{Key: k, Guard: g()})`, "zero Guard", `_ = func() any { return g() }; f(T{Key: k, })`},
		{`if ok { f(T{Guard: g, Key: k}) }`, "zero Guard", `if ok { _ = func() any { return g }; f(T{ Key: k}) }`},
		{`return s.add(a - b)`, "keep 1", `return s.add((a))`},
		{`return s.add(a + b - c)`, "keep 1 of +", `return s.add((a) - c)`},
		{`x = max(a, b*c)`, "keep 2 of max", `x = max((b*c))`},
		{`x := a.b`, "is uint64(0)", `x := uint64(0)`},
		{`return a, b`, "is nil, nil", `return nil, nil`},
		{`x = end`, "plus -1000", `x = (end + -1000)`},
		{`x, err := read(ctx, key, rev)`, "arg 3 is 0", `x, err := read(ctx, key, 0)`},
		{`go f(n)`, "arg 1 plus 1", `go f((n + 1))`},
		{`var x = y`, "is 0", `var x = 0`},
	} {
		text := "package p\n\nfunc f() {\n\t" + c.line + " //safety:here\n}\n"
		got, err := weaken([]byte(text), 4, c.operator)
		require.NoError(t, err, c.line)
		require.Equal(t, strings.Replace(text, c.line, c.want, 1), string(got))
	}
	for _, c := range []struct{ line, operator string }{
		{`x := f()`, "drop"}, {`x := f()`, "never"}, {`if a {}`, "never 2"}, {`f(T{A: b})`, "zero B"}, {`x = f(a)`, "keep 1"},
		{`x = a + b`, "keep 3"}, {`x = a + b`, "keep 1 of -"}, {`f()`, "arg 1 is 0"}, {`f(a)`, "arg 2 is 0"}, {`f(a)`, "is 0"}, {`f(a)`, "mangle"},
	} {
		_, err := weaken([]byte("package p\n\nfunc f() {\n\t"+c.line+"\n}\n"), 4, c.operator)
		require.Error(t, err, "%s: %s", c.line, c.operator)
	}
}

// TestOperatorsElsewhere weakens lines that are not statements of their own.
func TestOperatorsElsewhere(t *testing.T) {
	const text = `package p

const window = min * 4 / 5
func (t T) end(s I) I { return s.Add(t.ttl - t.margin) }
func f() {
	switch {
	case a, b:
	case a && b:
	} 
	g(T{
		Field: x > 1,
	}, h(a || b), 1)
	if a {
	} else if b {
	}
}
`
	for line, c := range map[int][2]string{
		3:  {"plus 7", "const window = (min * 4 / 5 + 7)"},
		4:  {"keep 1 of -", "func (t T) end(s I) I { return s.Add((t.ttl)) }"},
		7:  {"never", "\tcase (false && (a)), (false && (b)):"},
		8:  {"always 1", "\tcase (true || (a)) && b:"},
		11: {"zero Field", "\t\t"},
		14: {"never", "\t} else if (false && (b)) {"},
	} {
		got, err := weaken([]byte(text), line, c[0])
		require.NoError(t, err)
		require.Equal(t, c[1], strings.Split(string(got), "\n")[line-1])
	}
}
