package main

import (
	"strconv"
	"strings"

	natslockprom "github.com/natslock/locks/adapters/prometheus"
	"github.com/natslock/locks/internal/tool"
)

// other is the label of locks that match no pattern.
const other = natslockprom.Other

// labeler returns the function that maps names to labels: to the first pattern that
// matches, or to the first token if there are no patterns.
func labeler(patterns []string) func(name string) string {
	if len(patterns) == 0 {
		return func(name string) string {
			if strings.HasPrefix(name, "lockctl/doctor") { // a test name of "lockctl doctor"
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

// matches reports whether a name matches a pattern, by the rules of admin.Admin.List.
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

// checkPattern refuses a pattern in which a wildcard would be a literal: no lock has
// such a name.
func checkPattern(flag, pattern string) error {
	tokens := strings.Split(pattern, ".")
	for i, token := range tokens {
		if token == "*" || token == ">" && i == len(tokens)-1 {
			continue
		}
		if token == "" || strings.ContainsAny(token, "*>") {
			return tool.Usagef("--%s %s: \"*\" and a last \">\" stand for whole tokens, as in \"orders.*\" or \"orders.>\"", flag, strconv.Quote(pattern))
		}
	}
	return nil
}
