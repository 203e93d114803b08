package prose

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../../.."

// TestProse reads the whole repository. There are no exceptions: a sentence that breaks a
// rule for a good reason shows that the rule needs an exception in rules.go, with a row in
// TestRules.
func TestProse(t *testing.T) {
	found, err := survey(root)
	require.NoError(t, err)
	for _, f := range found {
		t.Errorf("%s:%d: %s: %s\n\t%s", f.file, f.line, f.rule, f.why, f.text)
	}
	if len(found) > 0 {
		t.Log("rewrite these sentences by the rules in doc.go")
	}
}

// TestRules has sentences that break a rule, and neighbours that do not.
func TestRules(t *testing.T) {
	thirty := strings.TrimSpace(strings.Repeat("word ", 30))
	for _, c := range []struct{ rule, sentence string }{
		{"private-word", "The operator mends the bucket."},
		{"", "The operator repairs the bucket and its amendments."},
		{"private-word", "A bucket that was made anew has other tokens."},
		{"private-word", "The holder is told at once."},
		{"private-word", "The event tells the waiter about the grant."},
		{"", "The cause tells released and lost apart."},
		{"", "The cause tells a lost lock from a released lock."},
		{"private-word", "The waiter looks at the queue."},
		{"private-word", "It costs a look."},
		{"", "It looks like a tombstone, and the client looks it up: look up the name."},
		{"private-word", "A client that hears nothing polls."},
		{"private-word", "A ghost of the attempt stays."},
		{"private-word", "The leaver sends releases."},
		{"", "The servers are rolled back, the roll-up is refused, in a rolling restart."},
		{"private-word", "Tokens roll over."},
		{"private-word", "It meets whoever holds the lock."},

		{"who-what", "Who looked is second."},
		{"who-what", "What is watched is the record."},
		{"who-what", "The write fails; what it stored stays."},
		{"who-what", "The waiter knows that what it read is old."},
		{"who-what", "The answer goes to who waits."},
		{"", "What does a lock cost?"},
		{"", "What a client needs:"},
		{"", "The error says who holds the lock and what the server said."},
		{"", "The operator, who breaks the lock, gives a reason."},
		{"", "The client whatever holds."},

		{"vague-noun", "The record is somebody else's."},
		{"vague-noun", "It returns those who wait."},
		{"vague-noun", "A waiter watches the one before."},
		{"", "Nobody holds that lock, and one of the waiters gets it."},
		{"", "The one record is enough."},
		{"vague-noun", "The client opens the next one that answers."},
		{"", "The client reads the locks one after the other."},

		{"long-sentence", thirty + " more."},
		{"", thirty + "."},
		{"", thirty + ". " + thirty + "."},
		{"", thirty + ". named is a parameter that begins a sentence."},

		{"glued", "A waiter reads the place before its own in the queue every five seconds; a holder renews its lease three times within its TTL."},
		{"", "A waiter reads the place before its own; a holder renews its lease."},
		{"", "A client reads three records with one request: the record of the lock; the place before its own, if it has one; the gate."},
		{"", "A waiter reads the place before its own in the queue every five seconds and after each reconnect; see the protocol."},
	} {
		var got []string
		for _, f := range check(passage{kind: sentences, text: plain(c.sentence)}) {
			got = append(got, f.rule)
		}
		if c.rule == "" {
			require.Empty(t, got, c.sentence)
		} else {
			require.Contains(t, got, c.rule, c.sentence)
		}
	}
}

// broken are the rules that a file breaks, in order.
func broken(t *testing.T, file, source string) []string {
	t.Helper()
	found, err := inspect(file, []byte(source))
	require.NoError(t, err)
	var rules []string
	for _, f := range found {
		rules = append(rules, f.rule)
	}
	return rules
}

func TestMarkdown(t *testing.T) {
	long := strings.Repeat("word ", 20) + "end"
	for _, c := range []struct {
		name, source string
		rules        []string
	}{
		{"paragraph", "One line, and then the client\nlooks.\n", []string{"private-word"}},
		{"heading", "# What it costs\n", nil},
		{"heading with a private word", "# A look\n", []string{"private-word"}},
		{"list", "- a first item\n- a second item that is\n  told\n", []string{"private-word"}},
		{"table", "| what | who |\n|---|---|\n| a | what is told |\n", []string{"private-word", "who-what"}},
		{"code block", "```\nlook\n```\n\n    look\n", nil},
		{"code span", "The flag `--look` of `tell`.\n", nil},
		{"identifier", "The method Client.LookAround and the file look_test.go, in internal/look.\n", nil},
		{"URL", "See <https://example.com/look> and [the page](https://example.com/tell).\n", nil},
		{"quoted output", "It prints *the client looks for what it has lost*, and \"look\".\n", nil},
		{"comment", "<!-- look -->\n", nil},
		{"long line", long + "\n", []string{"long-line"}},
		{"long line in a list", "- " + long + "\n", []string{"long-line"}},
		{"short line with a long link", "[the page](" + strings.Repeat("x", 100) + ")\n", nil},
		{"long line of code", "```\n" + long + "\n```\n", nil},
		{"long row", "| a |\n|---|\n| " + long + " |\n", nil},
	} {
		require.Equal(t, c.rules, broken(t, "page.md", c.source), c.name)
	}
}

func TestGo(t *testing.T) {
	for _, c := range []struct {
		name, source string
		rules        []string
	}{
		{"doc comment", "// Look looks at\n// the queue.\nfunc Look() {}", []string{"private-word"}},
		{"the name of what is documented", "// Look reads the queue.\nfunc Look() {}", nil},
		{"comment in a body", "func f() {\n\t// the waiter is told\n}", []string{"private-word"}},
		{"comment of a field", "type t struct {\n\tf int // what is left\n}", []string{"who-what"}},
		{"code in a comment", "// f has an example:\n//\n//\tlook()\nfunc f() {}", nil},
		{"link in a comment", "// f reads [Client.Look] and [look].\nfunc f() {}", nil},
		{"directive", "//go:generate look\nfunc f() {}", nil},
		{"output of an example", "func ExampleF() {\n\t// Output: the client looks\n}", nil},
		{"error text", "var e = errors.New(\"the bucket was made anew meanwhile\")", []string{"private-word"}},
		{"error text in parts", "var e = errors.New(\"the bucket was \" + s + \" made anew\")", []string{"private-word"}},
		{"error text with a remedy", "var e = errors.New(\"the stream that keeps the locks of this bucket has no leader at the moment; wait until its servers have elected one\")", nil},
		{"name", "var n = \"look\"", nil},
		{"code in a literal", "var n = \"look := who.tell(what, is, told)\"", nil},
		{"help", "type t struct {\n\tf int `help:\"Look at the queue of a lock.\"`\n}", []string{"private-word"}},
		{"rows of output", "var s = `Codes\n` + `  1  ` + `" + strings.Repeat("word ", 20) + "\n  2  " + strings.Repeat("word ", 20) + "`", nil},
	} {
		source := "package p\n\n" + c.source + "\n"
		require.Equal(t, c.rules, broken(t, "file.go", source), c.name)
	}
	require.Empty(t, broken(t, "file_test.go", "package p\n\nvar e = errors.New(\"the bucket was made anew\")\n"), "the texts of tests are not printed")
}

// TestReadmeIsShort keeps the README what it is for: a decision in two minutes.
func TestReadmeIsShort(t *testing.T) {
	readme, err := os.ReadFile(root + "/README.md")
	require.NoError(t, err)
	require.LessOrEqual(t, strings.Count(string(readme), "\n"), 150)
}
