package show

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
)

// CheckPattern warns of a wildcard that is none: such a byte is a part of a name, and the
// pattern matches nothing but a lock of that very name.
func CheckPattern(c *console.Console, pattern string) {
	if _, literal := wildcards(pattern); literal {
		c.Complain("the pattern %s matches only a lock of that very name: \"*\" and a last \">\" stand for others as whole tokens, as in \"orders.*\" or \"orders.>\"", strconv.Quote(pattern))
	}
}

// NoPattern returns a hint for a name that no lock has and that may be meant as a pattern.
func NoPattern(name string) string {
	if wild, literal := wildcards(name); (wild || literal) && Plain(name) == name {
		return fmt.Sprintf("; this takes the name of one lock and no pattern, which \"lockctl ls %s\" takes", shellQuoted(name))
	}
	return ""
}

// shellQuoted returns a word for a shell.
func shellQuoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// wildcards reports whether a pattern has a wildcard, and whether it has one that stands for
// itself.
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
