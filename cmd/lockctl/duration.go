package main

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"time"

	"github.com/alecthomas/kong"
)

// durations lets every flag that is a duration be a number of seconds too, as for flock and
// timeout.
var durations = kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	d, err := time.ParseDuration(text)
	if n, errN := strconv.ParseFloat(text, 64); errN == nil && math.Abs(n) < 1e9 {
		d, err = time.Duration(n*float64(time.Second)), nil
	}
	if err != nil {
		return fmt.Errorf("%q is not a number of seconds, nor a duration such as 90s or 2m", text)
	}
	target.SetInt(int64(d))
	return nil
}))
