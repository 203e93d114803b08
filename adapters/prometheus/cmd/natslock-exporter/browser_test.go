//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// chromiumVar names the Chromium executable. If it is unset, the tests look for the usual names.
const chromiumVar = "NATSLOCK_CHROMIUM"

// browser is a headless Chromium controlled over a pipe with the DevTools protocol.
type browser struct {
	t   testing.TB
	cmd *exec.Cmd
	out *os.File

	mu         sync.Mutex
	id         int
	answers    map[int]chan answer
	complaints []string // exceptions, policy violations and console messages of pages
}

type answer struct {
	ID        int             `json:"id"`
	Method    string          `json:"method"`
	Result    json.RawMessage `json:"result"`
	Error     json.RawMessage `json:"error"`
	Params    json.RawMessage `json:"params"`
	SessionID string          `json:"sessionId"`
}

// chromium starts a browser, or skips the test if there is none.
func chromium(t testing.TB) *browser {
	t.Helper()
	program := os.Getenv(chromiumVar)
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell", "chrome-headless-shell"} {
		if program != "" {
			break
		}
		program, _ = exec.LookPath(name)
	}
	if program == "" {
		t.Skipf("no Chromium in PATH, and %s names none", chromiumVar)
	}
	commands, out, err := os.Pipe()
	require.NoError(t, err)
	in, answers, err := os.Pipe()
	require.NoError(t, err)
	args := []string{"--headless", "--remote-debugging-pipe", "--user-data-dir=" + t.TempDir(), "--no-first-run", "--disable-gpu",
		"--disable-background-networking", "--disable-component-update", "--hide-scrollbars"}
	if os.Getuid() == 0 {
		args = append(args, "--no-sandbox") // as root it would refuse to start
	}
	b := &browser{t: t, out: out, answers: make(map[int]chan answer), cmd: exec.Command(program, args...)}
	b.cmd.ExtraFiles = []*os.File{commands, answers} // become descriptors 3 and 4
	ownGroup(b.cmd)
	if err := b.cmd.Start(); err != nil {
		t.Skipf("%s does not start: %v", program, err)
	}
	_, _ = commands.Close(), answers.Close()
	var reading sync.WaitGroup
	reading.Go(func() { b.read(in) })
	t.Cleanup(func() {
		killGroup(b.cmd)
		_ = b.cmd.Wait()
		_, _ = out.Close(), in.Close()
		reading.Wait()
	})
	return b
}

// read handles the browser's messages.
func (b *browser) read(in *os.File) {
	messages := bufio.NewScanner(in)
	messages.Buffer(nil, 64<<20)
	messages.Split(func(data []byte, end bool) (int, []byte, error) {
		if i := bytes.IndexByte(data, 0); i >= 0 {
			return i + 1, data[:i], nil
		}
		return 0, nil, nil
	})
	for messages.Scan() {
		var a answer
		if json.Unmarshal(messages.Bytes(), &a) != nil {
			continue
		}
		b.mu.Lock()
		switch a.Method {
		case "":
			if to := b.answers[a.ID]; to != nil {
				to <- a
				delete(b.answers, a.ID)
			}
		case "Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled":
			b.complaints = append(b.complaints, string(a.Params))
		}
		b.mu.Unlock()
	}
}

// call calls a DevTools method of a tab, or of the browser itself if tab is "".
func (b *browser) call(tab, method string, params map[string]any, result any) error {
	b.mu.Lock()
	b.id++
	message := map[string]any{"id": b.id, "method": method, "params": params}
	if tab != "" {
		message["sessionId"] = tab
	}
	got := make(chan answer, 1)
	b.answers[b.id] = got
	text, err := json.Marshal(message)
	if err == nil {
		_, err = b.out.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case a := <-got:
		if a.Error != nil {
			return fmt.Errorf("%s: %s", method, a.Error)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(a.Result, result)
	case <-time.After(patience):
		return errors.New(method + ": no answer")
	}
}

// look describes how a tab displays pages.
type look struct {
	dark          bool
	width, height int
}

var (
	desktop = look{width: 1280, height: 800}
	night   = look{width: 1280, height: 800, dark: true}
	phone   = look{width: 390, height: 780}
)

// tab is a tab of the browser.
type tab struct {
	b      *browser
	id     string
	target string
}

// open opens a page in a new tab.
func (b *browser) open(url string, l look) *tab {
	b.t.Helper()
	var target struct{ TargetID string }
	require.NoError(b.t, b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target))
	var session struct{ SessionID string }
	require.NoError(b.t, b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session))
	p := &tab{b, session.SessionID, target.TargetID}
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		p.do(domain+".enable", nil, nil)
	}
	// A page that is hidden stops following, and a new tab may hide the earlier ones.
	p.do("Emulation.setFocusEmulationEnabled", map[string]any{"enabled": true}, nil)
	scheme := "light"
	if l.dark {
		scheme = "dark"
	}
	p.do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]any{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	p.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": l.width, "height": l.height, "deviceScaleFactor": 1, "mobile": l.width < 600}, nil)
	p.do("Page.navigate", map[string]any{"url": url}, nil)
	return p
}

// close closes the tab. Tests must close tabs, because a browser opens at most six connections per
// address, and each visible tab keeps one open. Here all tabs are visible.
func (p *tab) close() {
	p.b.t.Helper()
	require.NoError(p.b.t, p.b.call("", "Target.closeTarget", map[string]any{"targetId": p.target}, nil))
}

func (p *tab) do(method string, params map[string]any, result any) {
	p.b.t.Helper()
	require.NoError(p.b.t, p.b.call(p.id, method, params, result))
}

// eval evaluates an expression in the page and returns its value as JSON.
func (p *tab) eval(expression string) string {
	p.b.t.Helper()
	var out struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	p.do("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &out)
	require.Empty(p.b.t, string(out.ExceptionDetails), expression)
	return string(out.Result.Value)
}

// until waits for an expression to become true. The page may still be loading.
func (p *tab) until(expression string) {
	p.b.t.Helper()
	for limit := time.Now().Add(patience); time.Now().Before(limit); time.Sleep(50 * time.Millisecond) {
		if p.eval("(() => { try { return Boolean("+expression+") } catch { return false } })()") == "true" {
			return
		}
	}
	p.shot("failed")
	require.Fail(p.b.t, "never true", "%s\n%s", expression, p.eval("document.body.innerText"))
}

// shot saves a screenshot of the page if a directory for screenshots is given.
func (p *tab) shot(name string) {
	p.b.t.Helper()
	if *shots == "" {
		return
	}
	var picture struct{ Data string }
	p.do("Page.captureScreenshot", map[string]any{"format": "png"}, &picture)
	data, err := base64.StdEncoding.DecodeString(picture.Data)
	require.NoError(p.b.t, err)
	require.NoError(p.b.t, os.WriteFile(filepath.Join(*shots, name+".png"), data, 0o644))
}

// quiet requires that no page has complained.
func (b *browser) quiet() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.complaints)
}
