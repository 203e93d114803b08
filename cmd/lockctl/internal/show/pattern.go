package show

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
)

// CheckPattern warns about a "*" or ">" that is not a wildcard. The character is then an
// ordinary part of a name, so the pattern matches only a lock with exactly that name.
func CheckPattern(c *console.Console, pattern string) {
	if _, literal := wildcards(pattern); literal {
		c.Complain("the pattern %s matches only a lock of exactly that name: \"*\" and a final \">\" are wildcards only as whole tokens, as in \"orders.*\" or \"orders.>\"", strconv.Quote(pattern))
	}
}

// NoPattern returns a hint if name, which no lock has, may have been meant as a pattern, and ""
// otherwise.
func NoPattern(name string) string {
	if wild, literal := wildcards(name); (wild || literal) && Plain(name) == name {
		return fmt.Sprintf("; this command takes a lock's name, not a pattern: for a pattern use \"lockctl ls %s\"", shellQuoted(name))
	}
	return ""
}

// shellQuoted quotes s for a shell.
func shellQuoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// wildcards reports whether a pattern has wildcards, and whether it has a "*" or ">" that is
// not a wildcard.
func wildcards(pattern string) (wild, literal bool) {
	tokens := strings.Split(pattern, ".")
	for i, token := range tokens {
		switch {
		case token == "*", token == ">" && i == len(tokens)-1:
			wild = true
		case strings.ContainsAny(token, "*>"):
			literal = true
		}
	}
	return wild, literal
}
