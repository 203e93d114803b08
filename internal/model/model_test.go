package model

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var scope = flag.String("scope", "small", "what TestProtocol explores: small, or large, which takes minutes")

// most bounds a large exploration by what fits into memory.
const most = 4_000_000

// TestProtocol explores the protocol as it is, to the end: no invariant is
// violated, and whoever waits can still get in.
func TestProtocol(t *testing.T) {
	runs := small()
	if *scope == "large" {
		runs = large()
		fmt.Println("| configuration | states | transitions | depth | all of them | time | verdict |\n|---|---|---|---|---|---|---|")
	}
	for _, r := range runs {
		t.Run(r.name, func(t *testing.T) {
			if *scope == "small" {
				t.Parallel()
			}
			res := r.explore(limits{states: most})
			if *scope == "large" {
				fmt.Println(row(res))
			}
			log(t, res)
			require.Empty(t, res.violated)
			require.True(t, res.exhausted)
		})
	}
}

// row is a result in a table.
func row(r result) string {
	all, verdict := "yes", "holds"
	if !r.exhausted {
		all = "no"
	}
	if r.violated != "" {
		verdict = "violated: " + r.violated
	}
	return fmt.Sprintf("| %s | %d | %d | %d | %s | %.1f s | %s |", r.name, r.states, r.transitions, r.depth, all, r.took.Seconds(), verdict)
}

// TestWeakened leaves out one rule at a time: the model notices, and tells the
// shortest story of what goes wrong (with -v).
func TestWeakened(t *testing.T) {
	for _, r := range weakened() {
		t.Run(r.name+", "+r.want, func(t *testing.T) {
			t.Parallel()
			res := r.explore(limits{only: r.want})
			log(t, res)
			require.Equal(t, r.want, res.violated, "not needed, or not noticed")
			require.NotEmpty(t, res.story)
		})
	}
}

func log(t *testing.T, res result) {
	t.Helper()
	t.Logf("%d states, %d transitions, %d steps deep, %v", res.states, res.transitions, res.depth, res.took.Round(time.Millisecond))
	for _, line := range res.story {
		t.Log(line)
	}
	if res.violated != "" {
		t.Logf("violated: %s", res.violated)
	}
}
