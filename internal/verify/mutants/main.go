// Mutants shows that the tests can fail where it matters. It weakens one line of the library at a
// time, and requires the test named for that line to fail. Safety or progress depends on each of
// these lines.
//
// A line of the core has a table test next to it that needs no server, and that test decides the
// verdict. Another test, which runs from outside the package against a server, shows what the line
// is for. That test must pass without the mutants, and with -all it must also fail with its mutant.
//
//	go run ./internal/verify/mutants             # all mutants
//	go run ./internal/verify/mutants -all        # with all named tests
//	go run ./internal/verify/mutants -run '^guard' -v
//	go run ./internal/verify/mutants -rules      # the rules page
//
// A weakened line has a label: a comment like //safety:late-answer at the end of the line. A
// mutant consists of a label and an operator, such as "never" for a condition that never holds.
// operator.go lists the operators.
//
// The tree itself is not touched: weakened files are overlaid on the real ones (go test -overlay).
// They contain all mutants at once, and the environment selects one, so that each test package is
// built only once. A mutant is an error if its label is missing or occurs twice, if it does not
// build, or if its test does not run. It is also an error if the test fails without the mutant, or
// fails with it for any reason other than an assertion, because a panic or a test that hangs may
// have nothing to do with the weakened line.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"sync"
	"time"
)

func main() {
	run := flag.String("run", "", "only the mutants whose names match this regular expression")
	parallel := flag.Int("parallel", 2, "how many to try at a time")
	outer := flag.Bool("all", false, "try a mutant with the test from outside too where one beside the line decides")
	verbose := flag.Bool("v", false, "print how each test failed")
	write := flag.Bool("rules", false, "try nothing, and write "+rulesPage)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *write {
		var root string
		if root, err = moduleRoot(ctx); err == nil {
			err = writeRules(root)
		}
	} else {
		err = tryAll(ctx, *run, *parallel, *outer, *verbose)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// tryAll selects the mutants whose names match pattern, checks that their tests pass without them,
// and then tries each mutant. The error is nil if every mutant is caught.
func tryAll(ctx context.Context, pattern string, parallel int, outer, verbose bool) error {
	names, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	chosen := slices.DeleteFunc(slices.Clone(mutants), func(m mutant) bool { return !names.MatchString(m.name()) })
	if len(chosen) == 0 {
		return fmt.Errorf("no mutant is named like %q", pattern)
	}
	slices.SortStableFunc(chosen, func(x, y mutant) int { // the fast ones first
		return cmp.Compare(min(len(y.beside), 1), min(len(x.beside), 1))
	})
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	places, err := labels(root)
	if err != nil {
		return err
	}
	begun := time.Now()
	b, err := baseline(ctx, root, dir, places, chosen, outer, parallel)
	if err != nil {
		return err
	}
	fmt.Printf("without mutants all their tests pass (%v)\n\n", time.Since(begun).Round(time.Second))

	var mu sync.Mutex
	bad := 0
	each(parallel, chosen, func(m mutant) {
		begun := time.Now()
		tests := m.judges(places, outer)
		verdict, output := try(ctx, root, dir, b, places, m, tests)
		mu.Lock()
		defer mu.Unlock()
		if verdict != caught {
			bad++
		}
		fmt.Printf("%-12s %-32s %5.1fs  %v\n%14s%s\n", verdict, m.name(), time.Since(begun).Seconds(), tests, "", m.weak)
		if verbose || verdict != caught {
			fmt.Println(output)
		}
	})
	fmt.Printf("\n%d mutants, %d not caught, %v\n", len(chosen), bad, time.Since(begun).Round(time.Second))
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case bad > 0:
		return fmt.Errorf("%d of %d mutants were not caught", bad, len(chosen))
	}
	return nil
}

// each calls fn on every item, running at most parallel calls at a time.
func each[T any](parallel int, items []T, fn func(T)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, max(parallel, 1))
	for _, item := range items {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			fn(item)
		})
	}
	wg.Wait()
}
