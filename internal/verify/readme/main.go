//go:build unix

// Command readme writes the real output of lockctl into the documents. It runs the lines in
// steps.go, with a separate server for each page, and puts the lines and their output between
// two markers. A test runs them again and compares the output.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

//go:generate go run . ../../..

const (
	begin = "<!-- Written by \"make docs\". -->\n"
	end   = "<!-- The end of what is written. -->\n"

	// patience is how long a step may take.
	patience = 30 * time.Second
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: readme ROOT")
		os.Exit(64)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "readme: %v\n", err)
		os.Exit(1)
	}
}

// run writes the sessions of all pages.
func run(root string) error {
	bin, err := os.MkdirTemp("", "readme-bin-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	if err := build(bin); err != nil {
		return err
	}
	for page, steps := range sessions {
		if err := rewrite(filepath.Join(root, page), bin, steps); err != nil {
			return fmt.Errorf("%s: %w", page, err)
		}
	}
	return nil
}

func build(bin string) error {
	out, err := exec.Command("go", "build", "-o", bin+"/", "github.com/natslock/locks/cmd/lockctl").CombinedOutput()
	if err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
}

func rewrite(file, bin string, steps []step) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, _, after, err := split(string(page))
	if err != nil {
		return err
	}
	session, err := play(bin, steps)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(before+begin+session+end+after), 0o644)
}

// split returns the text before, between and after the markers.
func split(page string) (before, session, after string, err error) {
	before, rest, found := strings.Cut(page, begin)
	session, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		return "", "", "", errors.New("the marks are missing")
	}
	return before, session, after, nil
}

// stage is the environment in which the lines run.
type stage struct {
	dir   string
	env   []string
	procs []*exec.Cmd
}

// play runs all steps and returns the lines with their output, as a Markdown block.
func play(bin string, steps []step) (_ string, err error) {
	st := &stage{}
	if st.dir, err = os.MkdirTemp("", "readme-"); err != nil {
		return "", err
	}
	defer os.RemoveAll(st.dir)
	defer st.stop()
	if err := st.prepare(bin); err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("```console\n")
	for i, s := range steps {
		out, err := st.perform(i, s)
		if err != nil {
			return "", fmt.Errorf("%s%s: %w\n%s", s.line, s.run, err, out)
		}
		if i == 0 { // the server, whose address the others need
			st.env = append(st.env, "NATS_URL="+strings.TrimSpace(out))
		}
		if s.hidden {
			continue
		}
		fmt.Fprintf(&b, "$ %s\n%s", s.line, shown(out))
	}
	b.WriteString("```\n")
	return b.String(), nil
}

func (st *stage) prepare(bin string) error {
	st.env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + st.dir, "XDG_CONFIG_HOME=" + st.dir}
	for _, script := range []string{"deploy.sh"} {
		if err := os.WriteFile(filepath.Join(st.dir, script), []byte("#!/bin/sh\nexec sleep 300\n"), 0o700); err != nil {
			return err
		}
	}
	return nil
}

// perform runs a step and returns its output. For a background step, it returns the output
// produced by the time the step's condition holds.
func (st *stage) perform(i int, s step) (string, error) {
	line := s.run
	if line == "" {
		line = s.line
	}
	inner, background := strings.CutSuffix(line, " &")
	if !background {
		out, err := st.command(line).CombinedOutput()
		return string(out), err
	}
	file := filepath.Join(st.dir, fmt.Sprintf("out.%d", i))
	out, err := os.Create(file)
	if err != nil {
		return "", err
	}
	defer out.Close()
	cmd := st.command("exec " + inner)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	st.procs = append(st.procs, cmd)
	for limit := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		err := st.command(s.until).Run()
		text, _ := os.ReadFile(file)
		if err == nil || time.Now().After(limit) {
			return string(text), err
		}
	}
}

func (st *stage) command(line string) *exec.Cmd {
	cmd := exec.Command("bash", "-c", line)
	cmd.Dir, cmd.Env = st.dir, st.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// stop kills the processes that are still running, the server last.
func (st *stage) stop() {
	for i := len(st.procs) - 1; i >= 0; i-- {
		_ = syscall.Kill(-st.procs[i].Process.Pid, syscall.SIGKILL)
		_ = st.procs[i].Wait()
	}
}

var address = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// shown returns the output with the server's actual address replaced by the default one, which
// the displayed command would print.
func shown(out string) string { return address.ReplaceAllString(out, "127.0.0.1:4222") }

// varying lists the parts of the output that differ from run to run.
var varying = []struct {
	is   *regexp.Regexp
	name string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`), "DATE"},
	{regexp.MustCompile(`[\w.-]+:\d+\b`), "HOST:PID"},
	{regexp.MustCompile(`on \S+ \(`), "on HOST ("},
	{regexp.MustCompile(`\b\d{14,16}\b`), "TOKEN"},
	{regexp.MustCompile(`\b\d+(\.\d+)?(ms|s)\b|\b\d+m\d\ds\b`), "TIME"},
	{regexp.MustCompile(`\b[A-Z0-9]{26}\b`), "ID"},
	{regexp.MustCompile(`[ \t]+`), " "},
}

// plain returns the output without the parts that vary.
func plain(session string) string {
	for _, v := range varying {
		session = v.is.ReplaceAllString(session, v.name)
	}
	return session
}
