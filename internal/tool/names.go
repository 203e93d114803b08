package tool

import (
	"fmt"
	"reflect"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/natslock/locks/internal/plain"
)

// Names lets arguments and flags of type "name" take the name of a lock, or a pattern, as it is
// displayed: in double quotes if it is not UTF-8, contains unprintable characters, or begins with a
// double quote.
var Names = kong.NamedMapper("name", kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("name", &text); err != nil {
		return err
	}
	name, err := plain.Parse(text)
	if err != nil {
		return fmt.Errorf("%s begins with a double quote but is not a quoted name such as %q", text, text)
	}
	switch target.Kind() {
	case reflect.Slice:
		target.Set(reflect.Append(target, reflect.ValueOf(name)))
	case reflect.Pointer:
		target.Set(reflect.ValueOf(&name))
	default:
		target.SetString(name)
	}
	return nil
}))

// CheckArguments returns an error if an argument is not UTF-8, because the parser would replace
// each invalid byte.
func CheckArguments(args []string) error {
	for _, arg := range args {
		if !utf8.ValidString(arg) {
			return Usagef("the argument %q is not UTF-8; a lock name must be written as shown here, with its quotes", arg)
		}
	}
	return nil
}
