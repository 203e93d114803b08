//go:build unix

package main_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	s := serve(t)
	hold(t, s, "orders.1")
	hold(t, s, "orders.2", "--read")
	hold(t, s, "jobs")
	start(t, s, "run", "orders.1", "--", "true")
	start(t, s, "run", "orders.1", "--", "true")
	awaitQueue(t, s, "orders.1", 2)

	for name, c := range map[string]struct {
		args []string
		code int
		out  string // a pattern
	}{
		"within":           {[]string{"--held", "1h", "--waits", "1h", "--queue", "2"}, 0, `^ok: 3 locks within the limits\n$`},
		"held":             {[]string{"--held", "1ns"}, 1, `^(mutex|rw) \S+ was held for \S+ by \S+ \w+, the limit is 1ns; and 2 locks more\n$`},
		"of some names":    {[]string{"jobs", "--held", "0.000001"}, 1, `^mutex jobs was held for \S+ by \S+ \w+, the limit is 1µs\n$`},
		"queue":            {[]string{"orders.>", "--queue", "1"}, 1, `^mutex orders.1 has 2 waiters, the limit is 1\n$`},
		"waits":            {[]string{"--waits", "1ns"}, 1, `^mutex orders.1 has a wait of \S+ by \S+ \w+, the limit is 1ns\n$`},
		"another code":     {[]string{"--queue", "1", "-E", "2"}, 2, `^mutex orders.1 has 2 waiters`},
		"no lock":          {[]string{"none", "--queue", "1"}, 0, `^ok: 0 locks within the limits\n$`},
		"JSON":             {[]string{"--queue", "1", "--json"}, 1, `^\[\n? *\{\n? *"kind": ?"mutex",\n? *"name": ?"orders.1"`},
		"JSON, within":     {[]string{"--queue", "2", "--json"}, 0, `^\[\]\n$`},
		"no limit":         {nil, 64, `^$`},
		"a limit below 0":  {[]string{"--queue", "-1"}, 64, `^$`},
		"a code below 1":   {[]string{"--queue", "1", "-E", "0"}, 64, `^$`},
		"a negative time":  {[]string{"--held", "-1s", "--queue", "1"}, 64, `^$`},
		"no such bucket":   {[]string{"--bucket", "none", "--queue", "1"}, 78, `^$`},
		"a time that is 0": {[]string{"--held", "0"}, 64, `^$`},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := run(t, s, append([]string{"check"}, c.args...)...)
			require.Equal(t, c.code, code, "%s%s", out, errs)
			require.Regexp(t, c.out, out)
		})
	}
}
