package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBatch checks that a program with several mutants behaves like the chosen one.
func TestBatch(t *testing.T) {
	const source = `package main

import "fmt"

type box[T any] struct{ v T }

func (b *box[T]) get(string, ...int) (v T, ok bool) {
	if b != nil { //safety:there
		return b.v, true
	}
	return v, false
}

func most[T int | float64](a, b T) T {
	return max(a, b) //safety:most
}

var told []string

func tell(words ...string) {
	told = append(told, words...)
	if len(told) > 1 { //safety:first
		told = told[:1] //safety:cut
	}
}

const limit = 1 + 2 //safety:limit

func main() {
	_, ok := (&box[int]{7}).get("", 1, 2)
	tell("a", "b")
	fmt.Print(ok, " ", most(2, 1), " ", told, " ", limit)
}
`
	root, tmp := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "main.go"), []byte(source), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "go.mod"), []byte("module x\n\ngo 1.24\n"), 0o600))
	places, err := labels(root)
	require.NoError(t, err)
	want := []struct{ label, operator, says string }{
		{"there", "never", "false 2 [a] 3"},
		{"most", "keep 2 of max", "true 1 [a] 3"},
		{"first", "never", "true 2 [a b] 3"},
		{"cut", "drop", "true 2 [a b] 3"},
		{"limit", "keep 1 of +", ""},
	}
	var all []mutant
	for _, w := range want {
		all = append(all, mutant{label: w.label, operator: w.operator})
	}
	b, err := newBatch(root, tmp, places, all)
	require.NoError(t, err)
	program := filepath.Join(tmp, "program")
	build := exec.Command("go", "build", "-overlay="+b.overlay, "-o", program, ".")
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	says := func(chosen string) string {
		run := exec.Command(program)
		run.Env = append(os.Environ(), chosenMutant+"="+chosen)
		out, err := run.Output()
		require.NoError(t, err)
		return strings.TrimSpace(string(out))
	}
	require.Equal(t, "true 2 [a] 3", says(""))
	require.Equal(t, "true 2 [a] 3", says("0"))
	for i, w := range want {
		number := b.numbers[all[i].name()]
		if w.says == "" {
			require.Zero(t, number, "%s is in no function", w.label)
			continue
		}
		require.Equal(t, w.says, says(strconv.Itoa(number)), w.label)
	}
}
