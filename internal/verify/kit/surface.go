package kit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/faults"
	"github.com/natslock/locks/natslock"
)

// Surface lists the exported API of the package under test, so that tests can call all of it.
type Surface struct {
	// Funcs maps names to the exported functions.
	Funcs map[string]any
	// Types maps the name of each exported type that has methods to a function that returns a
	// usable value.
	Types map[string]func(t *testing.T) any
	// Args holds usable arguments of types that the tests cannot create themselves.
	Args []any
	// Apply holds functions that use a value returned by the package, such as an option.
	Apply []any // func(T) error
	// Except says why a call need not be refused, keyed by the call ("Lock.Unlock(nil context)"),
	// or why a function or method is not called ("TestLocker").
	Except map[string]string
	// Is is the error that errors must match instead of natslock.ErrInvalid.
	Is error
	// Sent returns how much has been sent so far. It may be nil.
	Sent func() int

	used map[string]bool
}

// Counted returns a client on an in-memory bucket, and a function that returns how many requests it
// has sent.
func Counted(t testing.TB, m *kvstore.Memory) (c *natslock.Client, sent func() int) {
	t.Helper()
	var n atomic.Int64
	c, f := FaultyInMemory(t, m, 0)
	f.OnSend(func(int, kvstore.Write) faults.Fate { n.Add(1); return faults.Pass })
	f.FailReads(func(faults.ReadOp, string) error { n.Add(1); return nil })
	return c, func() int { return int(n.Load()) }
}

// long exceeds the limit for any text.
const long = 64 << 10

// RefusesNilAndTooLong calls each exported function and method with usable arguments except for one
// that is nil or too long, and each method with a nil and a zero receiver. The error must match
// natslock.ErrInvalid and fit on one line, and nothing may be sent. A call that returns no error
// must not panic.
func (s *Surface) RefusesNilAndTooLong(t *testing.T) {
	s.used = map[string]bool{}
	s.complete(t)
	for name, fn := range s.Funcs {
		s.calls(t, name, func() reflect.Value { return reflect.ValueOf(fn) })
	}
	for name, value := range s.Types {
		typ := reflect.TypeOf(value(t))
		for i := range typ.NumMethod() {
			method := name + "." + typ.Method(i).Name
			if s.excepted(method) {
				continue
			}
			s.calls(t, method, func() reflect.Value { return reflect.ValueOf(value(t)).Method(i) })
			if typ.Kind() != reflect.Pointer || s.excepted(name+" that is nil") {
				continue
			}
			s.call(t, method+" of nil", reflect.Zero(typ).Method(i), nil)
			s.call(t, method+" of a zero value", reflect.New(typ.Elem()).Method(i), nil)
		}
	}
	for what := range s.Except {
		require.True(t, s.used[what], "the exception %q is of no use", what)
	}
}

// excepted reports whether a call need not be refused.
func (s *Surface) excepted(what string) bool {
	_, ok := s.Except[what]
	s.used[what] = s.used[what] || ok
	return ok
}

// complete fails if the surface lacks an exported function, or an exported type with methods.
func (s *Surface) complete(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			switch {
			case !ok || !fn.Name.IsExported() || fn.Recv != nil && fn.Name.Name == "Is": // an error's method
			case fn.Recv == nil:
				if !s.excepted(fn.Name.Name) {
					require.Contains(t, s.Funcs, fn.Name.Name, "a function that the surface does not have")
				}
			default:
				name := receiver(fn.Recv.List[0].Type)
				if ast.IsExported(name) && len(fn.Type.Params.List) > 0 && !s.excepted(name) {
					require.Contains(t, s.Types, name, "a type with methods that the surface does not have")
				}
			}
		}
	}
}

func receiver(e ast.Expr) string {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	if name, ok := e.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}

// calls calls a function repeatedly, each time with a different argument that is nil or too long.
func (s *Surface) calls(t *testing.T, name string, fn func() reflect.Value) {
	t.Helper()
	typ := fn().Type()
	for i := range typ.NumIn() {
		in := typ.In(i)
		if typ.IsVariadic() && i == typ.NumIn()-1 {
			in = in.Elem()
		}
		for what, wrong := range s.wrong(t, in) {
			args := s.args(t, typ)
			args = append(args[:i:i], append([]reflect.Value{wrong}, args[min(i+1, len(args)):]...)...)
			s.call(t, fmt.Sprintf("%s(%s)", name, what), fn(), args)
		}
	}
}

// wrong returns values of a type that no function can use, keyed by a description.
func (s *Surface) wrong(t *testing.T, typ reflect.Type) map[string]reflect.Value {
	all := map[string]reflect.Value{}
	switch typ.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Func:
		all["nil "+short(typ)] = reflect.Zero(typ)
	case reflect.String:
		all["long "+short(typ)] = reflect.ValueOf(strings.Repeat("x", long)).Convert(typ)
	case reflect.Slice:
		for what, v := range s.wrong(t, typ.Elem()) {
			all["slice of "+what] = reflect.Append(reflect.MakeSlice(typ, 0, 1), v)
		}
	case reflect.Map:
		if typ.Key().Kind() == reflect.String && typ.Elem().Kind() == reflect.String {
			m := reflect.MakeMap(typ)
			m.SetMapIndex(reflect.ValueOf("key"), reflect.ValueOf(strings.Repeat("x", long)))
			all["long "+short(typ)] = m
		}
	case reflect.Struct:
		for i := range typ.NumField() {
			field := typ.Field(i)
			if !field.IsExported() {
				continue
			}
			for what, v := range s.wrong(t, field.Type) {
				if strings.HasPrefix(what, "nil") {
					continue // a field's zero value is its default
				}
				x := reflect.New(typ).Elem()
				x.Set(s.arg(t, typ))
				x.Field(i).Set(v)
				all[fmt.Sprintf("%s.%s: %s", short(typ), field.Name, what)] = x
			}
		}
	}
	return all
}

// short returns a type's name without its package.
func short(typ reflect.Type) string {
	if typ.Name() != "" {
		return typ.Name()
	}
	if typ.Kind() == reflect.Pointer {
		return short(typ.Elem())
	}
	return typ.Kind().String()
}

// args returns arguments that a function can use.
func (s *Surface) args(t *testing.T, typ reflect.Type) (args []reflect.Value) {
	n := typ.NumIn()
	if typ.IsVariadic() {
		n--
	}
	for i := range n {
		args = append(args, s.arg(t, typ.In(i)))
	}
	return args
}

func (s *Surface) arg(t *testing.T, typ reflect.Type) reflect.Value {
	for _, a := range s.Args {
		if v := reflect.ValueOf(a); v.Type().AssignableTo(typ) && typ.Kind() != reflect.String {
			return v
		}
	}
	switch {
	case typ == reflect.TypeFor[context.Context]():
		return reflect.ValueOf(t.Context())
	case typ == reflect.TypeFor[time.Duration]():
		return reflect.ValueOf(2 * time.Second)
	case typ == reflect.TypeFor[time.Time]():
		return reflect.ValueOf(time.Now().Add(time.Minute))
	case typ.Kind() == reflect.String:
		return reflect.ValueOf("a").Convert(typ)
	case typ.Kind() == reflect.Func:
		return reflect.MakeFunc(typ, func([]reflect.Value) (out []reflect.Value) {
			for i := range typ.NumOut() {
				out = append(out, reflect.Zero(typ.Out(i)))
			}
			return out
		})
	}
	return reflect.Zero(typ)
}

// call calls a function, which must refuse args. If args is nil, call uses usable arguments, and
// the function must refuse its receiver instead.
func (s *Surface) call(t *testing.T, what string, fn reflect.Value, args []reflect.Value) {
	t.Helper()
	excepted := s.excepted(what)
	if args == nil {
		args = s.args(t, fn.Type())
	}
	before := 0
	if s.Sent != nil {
		before = s.Sent()
	}
	done := make(chan struct{})
	var refused []error
	var panicked any
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		refused = s.results(t, fn.Call(args))
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s: it does not return", what)
	}
	switch {
	case panicked != nil && !excepted:
		t.Errorf("%s: it panics: %v", what, panicked)
	case panicked != nil || excepted:
		return
	}
	for _, err := range refused {
		switch {
		case !errors.Is(err, cmp.Or(s.Is, natslock.ErrInvalid)):
			t.Errorf("%s: the error does not match ErrInvalid: %v", what, err)
		case strings.Contains(err.Error(), "\n"):
			t.Errorf("%s: the error has more than one line: %v", what, err)
		case len(err.Error()) > 1024:
			t.Errorf("%s: the error has %d bytes", what, len(err.Error()))
		}
	}
	if s.Sent != nil && s.Sent() != before {
		t.Errorf("%s: something was sent", what)
	}
}

// results returns the errors among a function's results: an error itself, the errors of a sequence,
// errors from applying an option, and the error from a value's method that reports what is wrong
// with it.
func (s *Surface) results(t *testing.T, out []reflect.Value) (errs []error) {
	for _, v := range out {
		if v.Type() == reflect.TypeFor[error]() {
			err, _ := v.Interface().(error)
			return []error{err}
		}
	}
	for _, v := range out {
		if i := slices.IndexFunc(s.Apply, func(fn any) bool { return reflect.TypeOf(fn).In(0) == v.Type() }); i >= 0 {
			err, _ := reflect.ValueOf(s.Apply[i]).Call([]reflect.Value{v})[0].Interface().(error)
			errs = append(errs, err)
			continue
		}
		switch {
		case v.Kind() == reflect.Func && v.Type().CanSeq2():
			for _, err := range v.Seq2() {
				err, _ := err.Interface().(error)
				return []error{err}
			}
			errs = append(errs, errors.New("the sequence has no error"))
		case v.Kind() == reflect.Pointer && s.Types[short(v.Type())] != nil && !v.IsNil():
			for i := range v.NumMethod() {
				if m := v.Method(i); m.Type().NumOut() > 0 && m.Type().Out(m.Type().NumOut()-1) == reflect.TypeFor[error]() {
					errs = append(errs, s.results(t, m.Call(s.args(t, m.Type())))...)
				}
			}
			if i := slices.IndexFunc(errs, func(err error) bool { return errors.Is(err, natslock.ErrInvalid) }); i >= 0 {
				errs = errs[i : i+1] // the others need not check it
			}
		}
	}
	return errs
}
