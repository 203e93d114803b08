//go:build unix

package main_test

import (
	"context"
	"encoding/xml"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hinshun/vt10x"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/rwlock"
	"github.com/natslock/locks/semaphore"
)

const (
	pictureFile = "../../docs/top.svg"
	pictureCols = 100
	pictureRows = 13
)

// TestPicture compares the README's picture with top's screen, ignoring times, rates and server
// addresses. With -update it writes the picture.
func TestPicture(t *testing.T) {
	t.Parallel()
	s := serve(t)
	web, worker, batch := locker(t, s, "web-1"), locker(t, s, "worker-2"), locker(t, s, "batch-3")
	ctx, cancel := context.WithCancel(context.Background())
	var waiting sync.WaitGroup
	t.Cleanup(func() { cancel(); waiting.Wait() })
	keep := func(l *natslock.Lock, err error) {
		t.Helper()
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Unlock(context.Background()) })
	}
	keep(web.Lock(t.Context(), "orders.42"))
	for i, c := range []*natslock.Client{worker, batch} {
		waiting.Go(func() { _, _ = c.Lock(ctx, "orders.42") })
		awaitQueue(t, s, "orders.42", i+1)
	}
	keep(rwlock.New(web).RLock(t.Context(), "index"))
	keep(rwlock.New(worker).RLock(t.Context(), "index"))
	keep(batch.Lock(t.Context(), "reports.daily", natslock.TTL(time.Minute)))
	keep(semaphore.New(worker, 2).Acquire(t.Context(), "exports"))

	v := display(t, s, nil, "top")
	v.resize(pictureCols, pictureRows)
	v.shows("orders.42", "index", "reports.daily", "exports", "connected")
	v.until("the width", func(text string) bool {
		return strings.Count(strings.TrimRight(text, "\n"), "\n") == pictureRows-1
	})
	v.mu.Lock()
	picture := svg(v.vt)
	v.mu.Unlock()
	if *update {
		require.NoError(t, os.WriteFile(pictureFile, []byte(picture), 0o644))
	}
	written, err := os.ReadFile(pictureFile)
	require.NoError(t, err)
	require.Equal(t, steady(picture), steady(string(written)), "the picture is out of date: make docs")
}

var (
	tags    = regexp.MustCompile(`<[^>]*>`)
	figures = regexp.MustCompile(`\d+(\.\d+)?(ms|s|/s)|\d+m\d\ds|\S+:\d+|(^|\s)-(\s|$)`)
)

// steady returns the text of a picture without the parts that vary.
func steady(picture string) string {
	text := figures.ReplaceAllString(tags.ReplaceAllString(picture, " "), " N ")
	return strings.Join(strings.Fields(text), " ")
}

// colors are the 16 colors of a terminal with a dark background.
var colors = [16]string{
	"#21262d", "#ff7b72", "#7ee787", "#e3b341", "#79c0ff", "#d2a8ff", "#76e3ea", "#c9d1d9",
	"#8b949e", "#ffa198", "#aff5b4", "#f2cc60", "#a5d6ff", "#e2c5ff", "#b3f0ff", "#ffffff",
}

const (
	foreground, background = "#c9d1d9", "#0d1117"

	cellWidth, cellHeight = 8, 18
)

func color(c vt10x.Color) string {
	switch {
	case c == vt10x.DefaultFG:
		return foreground
	case c == vt10x.DefaultBG:
		return background
	case c < 16:
		return colors[c]
	}
	return foreground
}

// svg renders the terminal's contents as a picture. Each run of cells in the same colors becomes
// one text element of fixed width, so the columns line up with any font.
func svg(vt vt10x.View) string {
	cols, rows := vt.Size()
	width, height := cols*cellWidth+24, rows*cellHeight+24
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="lockctl top">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="%s"/>`+"\n", width, height, background)
	b.WriteString(`<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13" xml:space="preserve">` + "\n")
	for y := range rows {
		for x := 0; x < cols; {
			first, from := vt.Cell(x, y), x
			var run strings.Builder
			for ; x < cols; x++ {
				c := vt.Cell(x, y)
				if c.FG != first.FG || c.BG != first.BG {
					break
				}
				run.WriteRune(max(c.Char, ' '))
			}
			left, top := 12+from*cellWidth, 12+y*cellHeight
			if first.BG != vt10x.DefaultBG {
				fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>`+"\n", left, top, (x-from)*cellWidth, cellHeight, color(first.BG))
			}
			text := strings.TrimRight(run.String(), " ")
			if text == "" {
				continue
			}
			fmt.Fprintf(&b, `<text x="%d" y="%d" textLength="%d" fill="%s">`, left, top+13, len([]rune(text))*cellWidth, color(first.FG))
			_ = xml.EscapeText(&b, []byte(text))
			b.WriteString("</text>\n")
		}
	}
	b.WriteString("</g>\n</svg>\n")
	return b.String()
}
