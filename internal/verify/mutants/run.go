package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/natslock/locks/internal/verify/tier"
)

// verdict is the outcome of a mutant.
type verdict string

const (
	caught   verdict = "caught"
	survived verdict = "SURVIVED"
	misfit   verdict = "MISFIT"   // does not apply
	unbuilt  verdict = "NO BUILD" // applies but does not compile
	notRun   verdict = "NOT RUN"  // there is no such test
	hung     verdict = "HUNG"
	panicked verdict = "PANICKED"
)

const (
	// testTimeout is for a single test, and testShare is for each test when several run together.
	// Both are far longer than tests take, so that a slow test on a busy machine is not mistaken
	// for one that hangs.
	testTimeout = 2 * time.Minute
	testShare   = 10 * time.Second
	// buildTimeout is for everything before the tests.
	buildTimeout = 5 * time.Minute
)

// result is the outcome of go test.
type result struct {
	unbuilt bool
	started map[string]bool
	ended   map[string]string // test: pass, fail or skip
	output  string
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// goTest runs tests of a package. The error is nil whether or not they pass.
func goTest(ctx context.Context, root, dir string, tests []string, overlay string, flags ...string) (result, error) {
	timeout := timeoutOf(tests)
	args := append([]string{"test", "-json", "-count=1", "-vet=off", "-timeout", timeout.String(), "-run", pattern(tests)}, flags...)
	cmd := exec.Command("go", append(args, "./"+dir)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), tier.Variable+"=proof")
	if overlay != "" { // in the environment, for tests that build a program
		cmd.Env = append(cmd.Env, "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay)
	}
	return run(ctx, cmd, timeout)
}

// test runs tests of a package from its test binary, with the given mutant of the batch selected,
// or with none if number is 0.
func (b *batch) test(ctx context.Context, root, dir, binary string, tests []string, number int, flags ...string) (result, error) {
	timeout := timeoutOf(tests)
	args := append([]string{"tool", "test2json", "-t", binary, "-test.v=test2json", "-test.paniconexit0", "-test.count=1",
		"-test.timeout=" + timeout.String(), "-test.run=" + pattern(tests)}, flags...)
	cmd := exec.Command("go", args...)
	cmd.Dir = filepath.Join(root, dir)
	cmd.Env = append(os.Environ(), tier.Variable+"=proof", chosenMutant+"="+strconv.Itoa(number),
		"GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+b.overlay, "PWD="+cmd.Dir)
	return run(ctx, cmd, timeout)
}

func timeoutOf(tests []string) time.Duration {
	return testTimeout + time.Duration(len(tests))*testShare
}

// run runs a command that prints test events.
func run(ctx context.Context, cmd *exec.Cmd, timeout time.Duration) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout+buildTimeout)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Start()
	if err == nil {
		stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
		err = cmd.Wait()
		stop()
	}
	var exit *exec.ExitError
	if ctx.Err() != nil || err != nil && !errors.As(err, &exit) {
		return result{}, fmt.Errorf("go test: %w", errors.Join(err, ctx.Err()))
	}
	r := result{started: map[string]bool{}, ended: map[string]string{}}
	var text strings.Builder
	for line := range bytes.Lines(stdout.Bytes()) {
		var ev struct{ Action, Test, Output, FailedBuild string }
		if json.Unmarshal(line, &ev) != nil {
			text.Write(line)
			continue
		}
		switch ev.Action {
		case "run":
			r.started[ev.Test] = true
		case "pass", "fail", "skip":
			r.ended[ev.Test] = ev.Action
		case "output", "build-output":
			text.WriteString(ev.Output)
		}
		r.unbuilt = r.unbuilt || ev.Action == "build-fail" || ev.FailedBuild != ""
	}
	text.Write(stderr.Bytes())
	r.output = text.String()
	return r, nil
}

// pattern returns a -run expression that selects exactly the given tests.
func pattern(tests []string) string {
	all := make([]string, len(tests))
	for i, t := range tests {
		parts := strings.Split(t, "/")
		for j, p := range parts {
			parts[j] = "^" + regexp.QuoteMeta(p) + "$"
		}
		all[i] = strings.Join(parts, "/")
	}
	return strings.Join(all, "|")
}

// baseline builds the batch and runs every named test once without a mutant. If none of a package's
// tests decides a verdict, they run outside the batch, so that the packages above the mutants need
// not be built for those tests.
func baseline(ctx context.Context, root, tmp string, labels map[string]place, all []mutant, outer bool, parallel int) (*batch, error) {
	b, err := newBatch(root, tmp, labels, all)
	if err != nil {
		return nil, err
	}
	tests, decides := map[string][]string{}, map[string]bool{}
	for _, m := range all {
		for _, n := range m.tests(labels) {
			if !slices.Contains(tests[n.dir], n.test) {
				tests[n.dir] = append(tests[n.dir], n.test)
			}
		}
		for _, n := range m.judges(labels, outer) {
			decides[n.dir] = decides[n.dir] || b.numbers[m.name()] != 0
		}
	}
	dirs := slices.Sorted(maps.Keys(tests))
	failed := make([]error, len(dirs))
	var mu sync.Mutex
	each(parallel, dirs, func(dir string) {
		i := slices.Index(dirs, dir)
		var r result
		var err error
		var binary string
		if decides[dir] {
			if binary, err = b.build(ctx, root, tmp, dir); err != nil { // perhaps because of a single mutant
				fmt.Printf("each mutant is built by itself: %v\n", err)
			}
		}
		if binary != "" {
			mu.Lock()
			b.binaries[dir] = binary
			mu.Unlock()
			r, err = b.test(ctx, root, dir, binary, tests[dir], 0)
		} else {
			r, err = goTest(ctx, root, dir, tests[dir], "")
		}
		failed[i] = err
		for _, t := range tests[dir] {
			if err == nil && r.ended[t] != "pass" {
				failed[i] = errors.Join(failed[i], fmt.Errorf("%s.%s does not pass as it is:\n%s", dir, t, r.output))
			}
		}
	})
	return b, errors.Join(failed...)
}

// assertion matches the start of a failed assertion: the test's file and line.
var assertion = regexp.MustCompile(`(?m)^\s+\w+\.go:\d+: `)

// try runs a mutant's tests with the weakened file in place of the real one. The verdict comes from
// the first test that does not catch the mutant.
func try(ctx context.Context, root, tmp string, b *batch, labels map[string]place, m mutant, tests []named) (verdict, string) {
	file, text, err := m.apply(root, labels)
	if err != nil {
		return misfit, err.Error()
	}
	base := filepath.Join(tmp, strings.Map(plain, m.name()))
	weakened, overlay := base+".go", base+".json"
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, file): weakened}})
	if err == nil {
		err = errors.Join(os.WriteFile(weakened, text, 0o600), os.WriteFile(overlay, list, 0o600))
	}
	if err != nil {
		return misfit, err.Error()
	}
	number := b.numbers[m.name()]
	var output string
	for _, n := range tests {
		v, text := fails(n, func() (result, error) {
			if binary := b.binaries[n.dir]; binary != "" && number != 0 {
				return b.test(ctx, root, n.dir, binary, []string{n.test}, number, "-test.failfast")
			}
			return goTest(ctx, root, n.dir, []string{n.test}, overlay, "-failfast")
		})
		if v != caught {
			return v, text
		}
		output += text
	}
	return caught, output
}

// fails reports whether a test fails, as it should.
func fails(n named, test func() (result, error)) (verdict, string) {
	r, err := test()
	switch {
	case err != nil:
		return hung, err.Error()
	case r.unbuilt:
		return unbuilt, r.output
	case strings.Contains(r.output, "panic: test timed out"):
		return hung, r.output
	case strings.Contains(r.output, "panic:") && !assertion.MatchString(r.output):
		return panicked, r.output
	case r.ended[n.test] == "pass":
		return survived, r.output
	case !r.started[n.test] || r.ended[n.test] == "skip":
		return notRun, r.output
	}
	return caught, r.output
}

// plain replaces characters that do not belong in a file name.
func plain(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
		return r
	}
	return '_'
}
