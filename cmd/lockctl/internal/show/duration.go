package show

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// Clock formats t with its date and zone offset, so that it can be read on another day or
// machine.
func Clock(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05Z07:00") }

// clockMillis is Clock with milliseconds.
func clockMillis(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05.000Z07:00") }

// ClockOn formats t for a screen that is read immediately. It omits the date if t is on the
// same day as now.
func ClockOn(t, now time.Time) string {
	t, now = t.Local(), now.Local()
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format("15:04:05.000")
	}
	return t.Format("2006-01-02 15:04:05.000")
}

// Durations makes every duration flag accept a plain number of seconds, as flock and timeout
// do, and durations that begin with a number of days.
var Durations = kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("duration", &text); err != nil {
		return err
	}
	d, err := parseDuration(text)
	if n, errN := strconv.ParseFloat(text, 64); errN == nil && math.Abs(n) < 1e9 {
		d, err = time.Duration(n*float64(time.Second)), nil
	}
	if err != nil {
		return fmt.Errorf("%q is neither a number of seconds nor a duration such as 90s, 2m or 7d", text)
	}
	target.SetInt(int64(d))
	return nil
}))

// parseDuration is like [time.ParseDuration] but accepts days of 24 hours, as in 7d and 1d12h.
func parseDuration(text string) (time.Duration, error) {
	days, rest, ok := strings.Cut(text, "d")
	if !ok {
		return time.ParseDuration(text)
	}
	n, err := strconv.ParseFloat(days, 64)
	if err != nil || !(math.Abs(n) < 1e5) {
		return 0, errors.New("not a number of days")
	}
	d := time.Duration(n * 24 * float64(time.Hour))
	if rest == "" {
		return d, nil
	}
	more, err := time.ParseDuration(rest)
	return d + more, err
}
