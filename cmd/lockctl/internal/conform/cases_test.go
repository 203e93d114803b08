package conform

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
	text, err := os.ReadFile("../../../../docs/protocol.md")
	require.NoError(t, err)
	document := plainText(string(text))
	names := map[string]bool{}
	for _, c := range Cases {
		assert.Contains(t, document, plainText(c.Must), "case %s", c.Name)
		assert.False(t, names[c.Name], "two cases %s", c.Name)
		names[c.Name] = true
	}
	for _, must := range []string{mustHaveMargin, mustLeave, mustGiveUp} {
		assert.Contains(t, document, plainText(must))
	}
	for _, r := range rules {
		assert.Contains(t, document, plainText(r.must))
	}
}

var space = regexp.MustCompile(`[\s>]+`)

// plainText is a text on one line.
func plainText(s string) string { return strings.TrimSpace(space.ReplaceAllString(s, " ")) }

// TestLevels compares the level of each case with the table of the protocol: a case must not
// ask a locker for what its level may leave out.
func TestLevels(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/protocol.md")
	require.NoError(t, err)
	levelOf := map[int]int{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([1-5]) [^|]*\|[^|]*\|([^|]*)\|$`).FindAllStringSubmatch(string(text), -1) {
		level, err := strconv.Atoi(row[1])
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`M(\d+)(?: to M(\d+))?`).FindAllStringSubmatch(row[2], -1) {
			from, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			to := from
			if m[2] != "" {
				to, err = strconv.Atoi(m[2])
				require.NoError(t, err)
			}
			for n := from; n <= to; n++ {
				levelOf[n] = level
			}
		}
	}
	require.Greater(t, len(levelOf), 60)
	for _, c := range Cases {
		for _, m := range c.numbers() {
			assert.NotZero(t, levelOf[m], "case %s: M%d", c.Name, m)
			assert.LessOrEqual(t, levelOf[m], c.Level, "case %s: M%d", c.Name, m)
		}
	}
}
