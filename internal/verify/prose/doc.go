// Package prose checks the language of the repository: Markdown, Go comments and
// the texts that the library and its commands print. It is code for a test, and
// plain "go test ./..." runs it.
//
// # What it reads
//
//   - Every Markdown file, without code blocks, code spans, URLs and quotations.
//   - Every Go comment, the comments of tests included: a test documents the
//     behaviour it holds.
//   - String literals outside of tests that read like sentences: error texts, command
//     output, and the texts in struct tags. Literals that look like code are left out.
//
// Identifiers are not prose. The checker replaces each by a placeholder, so a rename
// changes no finding.
//
// # Rules
//
// A rule prefers silence to a false finding.
//
//   - private-word: a word that only this project used, where the field has its own.
//   - who-what: a clause that has "who" or "what" in the place of a noun.
//   - vague-noun: "somebody", "those who", "the one that", where the sentence has to name
//     the client, the holder, the waiter, the server or the operator.
//   - long-sentence: more than 30 words. The norm is about 20.
//   - glued: two thoughts in one sentence of more than 20 words, joined by a semicolon.
//     A printed text may have one: what went wrong, then the remedy.
//   - long-line: a line of Markdown prose with more than 100 columns.
//
// # Why not a linter
//
// Vale is the well-kept linter for prose. It is a binary to install, or a build with
// cgo and some sixty modules, and CI has Go modules only. It does not read Go's string
// literals or struct tags. Its rules would be the same regular expressions, in YAML. So the
// rules are own code, and the parsing is not: goldmark parses Markdown, go/parser and go/doc/comment parse Go.
//
// Libraries for sentences did not help. Unicode's rules (uax29) join a sentence that
// begins with a lower-case identifier to the sentence before, and such sentences are
// frequent in Go. The tokenizers trained on prose (neurosnap/sentences) are guesses, and
// have had no release since 2023.
package prose
