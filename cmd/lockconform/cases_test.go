package main

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSentences finds what the cases and the rules test in the protocol.
func TestSentences(t *testing.T) {
	text, err := os.ReadFile("../../docs/protocol.md")
	require.NoError(t, err)
	document := plainText(string(text))
	names := map[string]bool{}
	for _, c := range Cases {
		assert.True(t, strings.Contains(document, plainText(c.Must)), "case %s: protocol.md does not say %q", c.Name, c.Must)
		assert.False(t, names[c.Name], "two cases %s", c.Name)
		names[c.Name] = true
	}
	for _, must := range []string{mustHaveMargin, mustLeave, mustGiveUp, mustNotRead} {
		assert.True(t, strings.Contains(document, plainText(must)), "protocol.md does not say %q", must)
	}
	for _, r := range rules {
		assert.True(t, strings.Contains(document, plainText(r.must)), "protocol.md does not say %q", r.must)
	}
}

var space = regexp.MustCompile(`[\s>]+`)

// plainText is a text on one line.
func plainText(s string) string { return strings.TrimSpace(space.ReplaceAllString(s, " ")) }

// TestLevels compares the level of each case with the table of the protocol: a case must not
// ask a locker for what its level, or its part, may leave out.
func TestLevels(t *testing.T) {
	text, err := os.ReadFile("../../docs/protocol.md")
	require.NoError(t, err)
	levelOf, partOf := map[int]int{}, map[int]string{}
	parts := map[string]string{"reader-writer lock": rwlock, "semaphore": semaphore}
	for _, row := range regexp.MustCompile(`(?m)^\| ([1-5]|reader-writer lock|semaphore)\b[^|]*\|[^|]*\|([^|]*)\|$`).FindAllStringSubmatch(string(text), -1) {
		for _, m := range regexp.MustCompile(`M(\d+)(?: to M(\d+))?`).FindAllStringSubmatch(row[2], -1) {
			from, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			to := from
			if m[2] != "" {
				to, err = strconv.Atoi(m[2])
				require.NoError(t, err)
			}
			for n := from; n <= to; n++ {
				if partOf[n] = parts[row[1]]; partOf[n] == "" {
					levelOf[n], err = strconv.Atoi(row[1])
					require.NoError(t, err)
				}
			}
		}
	}
	require.Greater(t, len(levelOf), 60)
	tested := map[int]bool{}
	for _, c := range Cases {
		for _, m := range c.numbers() {
			tested[m] = true
			if c.Part != "" && partOf[m] == c.Part {
				continue
			}
			assert.NotZero(t, levelOf[m], "case %s: M%d", c.Name, m)
			assert.LessOrEqual(t, levelOf[m], c.Level, "case %s: M%d", c.Name, m)
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
	for m := range levelOf {
		if levelOf[m] <= 4 || said[m] {
			assert.NotEqual(t, tested[m], said[m], "M%d, of level %d: conform.md says whether it has a case", m, levelOf[m])
		}
	}
	for m, part := range partOf {
		if part != "" {
			assert.NotEqual(t, tested[m], said[m], "M%d, of %s: conform.md says whether it has a case", m, part)
		}
	}
	for _, c := range Cases {
		assert.True(t, strings.Contains(string(document), "`"+c.Name+"`"), "conform.md does not list %s", c.Name)
	}
}
