package prose

import (
	"regexp"
	"slices"
	"strings"
)

// The placeholders.
const (
	code  = "Code"
	quote = "Quote"
)

var (
	spans   = regexp.MustCompile("`[^`]*`")
	quotes  = regexp.MustCompile(`"[^"]{1,300}"|“[^”]{1,300}”`)
	links   = regexp.MustCompile(`\[[\w.*/]+\]`)
	abbrevs = regexp.MustCompile(`\b(e\.g|i\.e|etc|vs|cf)\.`)

	// identifier is a token that no English word is: mixed case, a path, an
	// operator, a call.
	identifier = regexp.MustCompile(`[_/=<>$*{}\[\]%@#&|\\~^+]|[a-z0-9][A-Z]|[A-Za-z]\.[A-Za-z]|\(\)`)
	number     = regexp.MustCompile(`^[~<>+-]?[\d.,]+%?$`)
	ticks      = strings.NewReplacer("’", "'", "\u00a0", " ")

	// lowerNames are names that look like words.
	lowerNames = []string{"natslock", "rwlock", "kvstore", "testutil", "lockctl", "nats-server", "nats", "go"}
)

// plain replaces all that is not prose by placeholders, and joins the lines.
func plain(text string) string {
	text = ticks.Replace(text)
	text = spans.ReplaceAllString(text, code)
	text = strings.Join(strings.Fields(text), " ")
	text = quotes.ReplaceAllString(text, quote)
	text = links.ReplaceAllString(text, code)
	text = abbrevs.ReplaceAllString(text, "$1")
	fields := strings.Split(text, " ")
	for i, f := range fields {
		fields[i] = masked(f)
	}
	return strings.TrimSpace(strings.Join(fields, " "))
}

// masked replaces an identifier, and leaves the punctuation around it.
func masked(f string) string {
	body := strings.TrimLeft(f, `("'[`)
	lead := f[:len(f)-len(body)]
	core := strings.TrimRight(body, `.,;:!?)"']`)
	if strings.HasSuffix(core, "(") && len(core) < len(body) { // a call: the brackets belong to it
		core += body[len(core) : len(core)+1]
	}
	tail := body[len(core):]
	switch {
	case number.MatchString(core):
		return f
	case identifier.MatchString(core), slices.Contains(lowerNames, strings.TrimSuffix(core, "'s")):
		return lead + code + tail
	}
	return f
}

// stop is the end of a sentence. Unicode's rules would join a sentence that begins
// with a lower-case name to the sentence before.
var stop = regexp.MustCompile(`[.!?]["')\]]*(?: |$)`)

// split returns the sentences of a text that went through plain.
func split(text string) []string {
	var all []string
	from := 0
	for _, at := range stop.FindAllStringIndex(text, -1) {
		all = append(all, strings.TrimSpace(text[from:at[1]]))
		from = at[1]
	}
	if rest := strings.TrimSpace(text[from:]); rest != "" {
		all = append(all, rest)
	}
	return all
}
