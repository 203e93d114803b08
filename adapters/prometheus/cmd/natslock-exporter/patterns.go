package main

import (
	"strconv"
	"strings"

	natslockprom "github.com/natslock/locks/adapters/prometheus"
	"github.com/natslock/locks/internal/tool"
)

// other is the label for locks that match no pattern.
const other = natslockprom.Other

// labeler returns the function that maps a name to its label, which is the first pattern
// that matches or, without patterns, the first token of the name.
func labeler(patterns []string) func(name string) string {
	if len(patterns) == 0 {
		return func(name string) string {
			if strings.HasPrefix(name, "lockctl/doctor") { // a test lock of "lockctl doctor"
				return other
			}
			return natslockprom.FirstToken(name)
		}
	}
	return func(name string) string {
		for _, p := range patterns {
			if matches(p, name) {
				return p
			}
		}
		return other
	}
}

// matches reports whether name matches pattern by the rules of admin.Admin.List.
func matches(pattern, name string) bool {
	for {
		want, morePattern, wantMore := strings.Cut(pattern, ".")
		got, moreName, gotMore := strings.Cut(name, ".")
		switch {
		case want == ">" && !wantMore:
			return true
		case want != "*" && want != got, wantMore != gotMore:
			return false
		case !wantMore:
			return true
		}
		pattern, name = morePattern, moreName
	}
}

// checkPattern rejects a pattern in which a wildcard would be taken literally, because
// that is almost certainly a mistake.
func checkPattern(flag, pattern string) error {
	tokens := strings.Split(pattern, ".")
	for i, token := range tokens {
		if token == "*" || token == ">" && i == len(tokens)-1 {
			continue
		}
		if token == "" || strings.ContainsAny(token, "*>") {
			return tool.Usagef("--%s %s: \"*\" and a final \">\" match whole tokens only, as in \"orders.*\" or \"orders.>\"", flag, strconv.Quote(pattern))
		}
	}
	return nil
}
