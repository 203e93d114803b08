package prose

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// kind is what a passage is in its file: some rules do not apply to all.
type kind int

const (
	sentences kind = iota // a paragraph, a comment, a text that is printed
	title                 // a heading: it may be a question or a phrase
	printed               // an error text or output: a remedy may follow a semicolon
)

// passage is a stretch of text with its place.
type passage struct {
	file string
	line int
	kind kind
	text string // identifiers and quotations are placeholders
}

// finding is a place where a rule is broken.
type finding struct {
	rule string
	file string
	line int
	text string // of the sentence, or of the line
	why  string
}

const (
	maxWords   = 30
	maxGlued   = 20
	minClause  = 4 // words on each side of a semicolon that make it a glue
	maxColumns = 100
)

// rule judges a sentence. It returns why the sentence breaks it, or "".
type rule struct {
	name  string
	to    []kind
	judge func(sentence string) string
}

var rules = []rule{
	{"private-word", []kind{sentences, title, printed}, privateWord},
	{"who-what", []kind{sentences, printed}, whoWhat},
	{"vague-noun", []kind{sentences, printed}, vagueNoun},
	{"long-sentence", []kind{sentences, printed}, longSentence},
	{"glued", []kind{sentences}, glued},
}

// check returns the findings in a passage.
func check(p passage) []finding {
	var found []finding
	for _, s := range split(p.text) {
		for _, r := range rules {
			if !slices.Contains(r.to, p.kind) {
				continue
			}
			if why := r.judge(s); why != "" {
				found = append(found, finding{r.name, p.file, p.line, s, why})
			}
		}
	}
	return found
}

// private is a private word and the field's own.
type private struct {
	is      *regexp.Regexp
	unless  *regexp.Regexp // in the text behind it: then it is the field's word
	instead string
}

func word(pattern string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:` + pattern + `)\b`)
}

func next(pattern string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)^[ -]?(?:` + pattern + `)\b`)
}

var privates = []private{
	{word(`mend(?:s|ed|ing)?`), nil, "repair, fix"},
	{word(`anew|made again`), nil, "re-created"},
	{word(`told`), next(`apart|from`), "notified, reported"},
	{word(`tell(?:s|ing)?`), regexp.MustCompile(`(?i)^[^.;:]*?\b(?:apart|from)\b`), "report, notify, say"},
	{word(`teller|leaver`), nil, "the name of the goroutine's task"},
	{word(`look(?:s|ed|ing)?`), next(`like|alike|up|ups|ahead|it up|them up`), "read, check"},
	{word(`hurr(?:y|ies|ied|ying)`), nil, "retry at once"},
	{word(`hear(?:s|d|ing)?|unheard`), nil, "receive a notification"},
	{word(`sight(?:s|ed|ing|ings)?`), nil, "notification of a record"},
	{word(`haunt(?:s|ed|ing)?|ghosts?`), nil, "late write"},
	{word(`roll(?:s|ed|ing)?`), next(`up|ups|back|restart|restarts|upgrade|upgrades|out`), "replace, advance"},
	{word(`whoever|whomever`), nil, "the client, the holder, the waiter"},
}

func privateWord(s string) string {
	for _, p := range privates {
		for _, at := range p.is.FindAllStringIndex(s, -1) {
			if p.unless == nil || !p.unless.MatchString(s[at[1]:]) {
				return `"` + s[at[0]:at[1]] + `": ` + p.instead
			}
		}
	}
	return ""
}

var (
	// opening is a clause that begins with the pronoun, at the start of the
	// sentence, after a semicolon or after a conjunction.
	opening = regexp.MustCompile(`(?i)(?:^\W*|; |\b(?:because|although|unless|that) )(who|what)\s+\w`)
	// governed is "who" behind a preposition, where English has "whom" or a noun.
	governed = regexp.MustCompile(`(?i)\b(?:by|to|for|from|than|with|as) who\s+\w`)
)

func whoWhat(s string) string {
	if strings.HasSuffix(s, "?") || strings.HasSuffix(s, ":") { // it introduces a list
		return ""
	}
	if m := opening.FindStringSubmatch(s); m != nil {
		return `"` + strings.ToLower(m[1]) + `" in the place of a noun`
	}
	if governed.MatchString(s) {
		return `"who" in the place of a noun`
	}
	return ""
}

var vague = regexp.MustCompile(`(?i)\b(?:` +
	`some(?:body|one)(?: else)?(?:'s)?` +
	`|(?:those|he|they|anybody|anyone|everybody|everyone|nobody|ones|all) who` +
	`|the (?:(?:only|next|last|first|other|same|old|new|earlier|later) )?one (?:that|which|who|whose|before|after|behind|ahead)` +
	`)\b`)

func vagueNoun(s string) string {
	if m := vague.FindString(s); m != "" {
		return `"` + m + `": name the noun`
	}
	return ""
}

func longSentence(s string) string {
	if n := words(s); n > maxWords {
		return "the sentence has " + strconv.Itoa(n) + " words"
	}
	return ""
}

func glued(s string) string {
	before, after, found := strings.Cut(s, "; ")
	switch {
	case !found, strings.Contains(after, "; "), strings.Contains(before, ": "): // a list
		return ""
	case words(before) < minClause, words(after) < minClause, words(s) <= maxGlued:
		return ""
	}
	return "a semicolon joins two thoughts"
}

// words counts the words of a text: the fields with a letter or a digit.
func words(s string) int {
	n := 0
	for _, f := range strings.Fields(s) {
		if strings.ContainsFunc(f, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			n++
		}
	}
	return n
}
