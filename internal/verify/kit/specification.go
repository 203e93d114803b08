package kit

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Rule is one of the musts in docs/protocol.
type Rule struct {
	Level int    // the level of its chapter, 1 to 5; 0 if it belongs to a part
	Part  string // the page of its part, for example "rwlock"; "" if it belongs to a level
}

// Specification is docs/protocol, parsed for tests.
type Specification struct {
	Pages map[string]string // by name without .md; the page about lockconform is left out
	Musts map[int]Rule      // by number
}

var (
	fenced   = regexp.MustCompile("(?ms)^```.*?^```$")
	links    = regexp.MustCompile(`\[([^][]*)\]\([^)]*\)`)
	chapter  = regexp.MustCompile(`(?m)^## Level (\d)`)
	mustWord = regexp.MustCompile(`\b[Mm]ust\b`)
	numbered = regexp.MustCompile(`^must(?:\s+not)?\s+\(M(\d+)\)`)
	spaces   = regexp.MustCompile(`[\s>]+`)
)

const definition = "*Must* and *must not* mark rules"

// Specify reads the specification in a checkout. Each must has a unique number, and belongs either
// to its level's chapter or to its part's page. README.md and the reference contain no musts.
func Specify(t testing.TB, root string) (s Specification) {
	t.Helper()
	s = Specification{Pages: map[string]string{}, Musts: map[int]Rule{}}
	files, err := filepath.Glob(filepath.Join(root, "docs/protocol/*.md"))
	require.NoError(t, err)
	for _, file := range files {
		page := strings.TrimSuffix(filepath.Base(file), ".md")
		if page == "conform" {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		s.Pages[page] = string(text)
		s.read(t, page)
	}
	require.Contains(t, s.Pages["README"], definition)
	return s
}

func (s Specification) read(t testing.TB, page string) {
	t.Helper()
	text := links.ReplaceAllString(fenced.ReplaceAllString(s.Pages[page], ""), "$1")
	text = strings.Replace(text, definition, "", 1)
	text = strings.Replace(text, "### Must be as here", "", 1)
	for _, at := range mustWord.FindAllStringIndex(text, -1) {
		m := numbered.FindStringSubmatch(text[at[0]:])
		require.NotNil(t, m, "%s.md: a must without a number: %.80q", page, text[at[0]:])
		n, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		require.NotContains(t, s.Musts, n, "%s.md: M%d has another must already", page, n)
		rule := Rule{Part: page}
		switch page {
		case "README", "reference", "wire", "evidence":
			require.Fail(t, "a must on a page without rules", "%s.md: M%d", page, n)
		case "mutex":
			rule = Rule{Level: 1} // even above the first chapter
			if before := chapter.FindAllStringSubmatch(text[:at[0]], -1); before != nil {
				rule.Level, err = strconv.Atoi(before[len(before)-1][1])
				require.NoError(t, err)
			}
		case "replicas":
			rule = Rule{Level: 5}
		}
		s.Musts[n] = rule
	}
}

// Says reports whether any page contains the sentence, ignoring line breaks and links.
func (s Specification) Says(sentence string) bool {
	for _, text := range s.Pages {
		if strings.Contains(oneLine(text), oneLine(sentence)) {
			return true
		}
	}
	return false
}

func oneLine(text string) string {
	return strings.TrimSpace(spaces.ReplaceAllString(links.ReplaceAllString(text, "$1"), " "))
}
