package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
)

const root = "../.."

// TestSentences checks that docs/protocol contains every sentence that a case or a rule cites.
func TestSentences(t *testing.T) {
	protocol := kit.Specify(t, root)
	names := map[string]bool{}
	for _, c := range Cases {
		assert.True(t, protocol.Says(c.Must), "case %s: docs/protocol does not say %q", c.Name, c.Must)
		assert.False(t, names[c.Name], "two cases %s", c.Name)
		names[c.Name] = true
	}
	for _, must := range []string{mustHaveMargin, mustLeave, mustGiveUp, mustNotRead, mustNameTheEnded} {
		assert.True(t, protocol.Says(must), "docs/protocol does not say %q", must)
	}
	for _, r := range rules {
		assert.True(t, protocol.Says(r.must), "docs/protocol does not say %q", r.must)
	}
}

// TestLevels checks that no case tests a requirement above its own level or outside its part,
// because a locker may leave those out.
func TestLevels(t *testing.T) {
	musts := kit.Specify(t, root).Musts
	tested := map[int]bool{}
	for _, c := range Cases {
		for _, m := range c.numbers() {
			tested[m] = true
			must, there := musts[m]
			assert.True(t, there, "case %s: M%d", c.Name, m)
			if must.Part != "" {
				assert.Equal(t, c.Part, must.Part, "case %s: M%d", c.Name, m)
			}
			assert.LessOrEqual(t, must.Level, c.Level, "case %s: M%d", c.Name, m)
		}
	}
	for _, r := range rules {
		for _, m := range numbersIn(r.must) {
			tested[m] = true
		}
	}
	for _, m := range numbersIn(mustHaveMargin + mustGiveUp + mustLeave) {
		tested[m] = true
	}
	document, err := os.ReadFile("../../docs/protocol/conform.md")
	require.NoError(t, err)
	said := map[int]bool{}
	untested := regexp.MustCompile(`(?s)\n## Without a case\n.*`).FindString(string(document))
	for _, row := range regexp.MustCompile(`(?m)^\| (M\d+[^|]*)\|`).FindAllStringSubmatch(untested, -1) {
		for _, m := range numbersIn(row[1]) {
			said[m] = true
		}
	}
	for m := range said {
		assert.Contains(t, musts, m, "conform.md names M%d, which there is not", m)
	}
	for m, must := range musts {
		if must.Level > 0 && must.Level <= 4 || must.Part == rwlock || must.Part == semaphore || said[m] {
			assert.NotEqual(t, tested[m], said[m], "M%d, %+v: conform.md says whether it has a case", m, must)
		}
	}
	for _, c := range Cases {
		assert.True(t, strings.Contains(string(document), "`"+c.Name+"`"), "conform.md does not list %s", c.Name)
	}
}
