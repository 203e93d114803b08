package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCoreIsPlainData checks that internal/core only decides and leaves acting to the packages around
// it. It has no goroutine, channel, mutex or context, and reads neither clocks nor random numbers.
func TestCoreIsPlainData(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "internal", "core", "*.go"))
	require.NoError(t, err)
	fset := token.NewFileSet()
	read := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		read++
		file, err := parser.ParseFile(fset, name, nil, 0)
		require.NoError(t, err)
		for _, finding := range active(fset, file) {
			assert.Fail(t, finding)
		}
	}
	require.Positive(t, read)
}

// active returns what a file does besides deciding.
func active(fset *token.FileSet, file *ast.File) (findings []string) {
	add := func(n ast.Node, what string) {
		at := fset.Position(n.Pos())
		findings = append(findings, filepath.Base(at.Filename)+":"+strconv.Itoa(at.Line)+" "+what)
	}
	for _, i := range file.Imports {
		allowed := []string{`"container/heap"`, `"container/list"`, `"maps"`, `"math"`, `"slices"`, `"time"`, `"cmp"`, `"errors"`, `"fmt"`,
			strconv.Quote(module + "/internal/clock"), strconv.Quote(module + "/internal/record")}
		if !slices.Contains(allowed, i.Path.Value) {
			add(i, "imports "+i.Path.Value)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			add(n, "starts a goroutine")
		case *ast.ChanType:
			add(n, "has a channel")
		case *ast.SelectorExpr:
			pkg, ok := n.X.(*ast.Ident)
			if !ok || pkg.Obj != nil {
				return true
			}
			clocks := pkg.Name == "clock" && !slices.Contains([]string{"Instant", "Terms", "MinTTL", "NewTerms", "CeilSecond"}, n.Sel.Name)
			times := pkg.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}, n.Sel.Name)
			if clocks || times {
				add(n, "calls "+pkg.Name+"."+n.Sel.Name)
			}
		}
		return true
	})
	return findings
}

// TestActive shows what plain data must not do.
func TestActive(t *testing.T) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "x.go", `package core
import "sync"
import "time"
import "github.com/natslock/locks/internal/clock"
func f(at clock.Instant, d time.Duration) {
	go f(clock.Now(), 0)
	_ = time.Now()
	_ = make(chan int)
}`, 0)
	require.NoError(t, err)
	require.Equal(t, []string{
		`x.go:2 imports "sync"`, "x.go:6 starts a goroutine", "x.go:6 calls clock.Now", "x.go:7 calls time.Now", "x.go:8 has a channel",
	}, active(fset, file))
}
