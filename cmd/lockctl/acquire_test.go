//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// aHandle is well formed but names no existing lock.
const aHandle = "natslock-script-1:lock.x:244ZE2GGPYRAYNQN3QQRZTACUM:2200133660454592:60"

// scripted is the output of acquire --json and extend --json.
type scripted struct {
	Handle, Kind, Mode, Name, ID string
	Slot                         *int
	Token                        uint64
	TTL, Valid                   float64
	ValidUntil                   time.Time `json:"valid_until"`
	Expires                      time.Time
}

// word runs a command that prints a handle, and returns the handle.
func word(t *testing.T, s *testutil.Server, args ...string) string {
	t.Helper()
	code, out, errs := run(t, s, args...)
	require.Zero(t, code, errs)
	require.Empty(t, errs)
	require.Regexp(t, `^natslock-script-1:\S+\n$`, out)
	return strings.TrimSpace(out)
}

// extend extends the lock with the given handle and returns how many seconds it stays valid.
func extend(t *testing.T, s *testutil.Server, handle string, flags ...string) int {
	t.Helper()
	code, out, errs := run(t, s, append([]string{"extend", handle}, flags...)...)
	require.Zero(t, code, errs)
	seconds, err := strconv.Atoi(strings.TrimSpace(out))
	require.NoError(t, err, "whole seconds, for timeout(1)")
	return seconds
}

// refused requires that the command rejects the handle with this exit code and message.
func refused(t *testing.T, s *testutil.Server, code int, says, command, handle string) {
	t.Helper()
	got, out, errs := run(t, s, command, handle)
	require.Equal(t, code, got, errs)
	require.Empty(t, out)
	require.Contains(t, errs, says)
}

const notHeld = "is no longer held by this handle: its TTL expired, or it was broken or released; "

// sort is a kind of lock that a script can acquire. The others flags request a conflicting lock.
type sort struct {
	name, kind, mode string
	flags, others    []string
}

func sorts() []sort {
	return []sort{
		{"mutex", "mutex", "exclusive", nil, nil},
		{"writer", "rw", "exclusive", []string{"--write"}, []string{"--read"}},
		{"reader", "rw", "shared", []string{"--read"}, []string{"--write"}},
		{"permit", "semaphore", "exclusive", []string{"--permits", "1"}, []string{"--permits", "1"}},
	}
}

// heldBy returns the holder that the handle names, or the zero holder if there is none.
func heldBy(t *testing.T, s *testutil.Server, name, handle string) holder {
	t.Helper()
	for _, l := range locks(t, s, "info", name) {
		all := append(slices.Clone(l.Readers), l.Permits...)
		if l.Holder != nil {
			all = append(all, *l.Holder)
		}
		for _, h := range all {
			if h.ID == strings.Split(handle, ":")[2] {
				return h
			}
		}
	}
	return holder{}
}

// behind starts a command that needs a conflicting lock, and returns once it is queued.
func (k sort) behind(t *testing.T, s *testutil.Server, name, line string) *process {
	t.Helper()
	p := start(t, s, slices.Concat([]string{"run"}, k.others, []string{name, "-c", line})...)
	await(t, s, name, "a waiter", func(l lock) bool { return len(l.Queue) == 1 || l.WriterWaits })
	return p
}

// TestAcquire checks that a handle carries a lock across separate processes, with the token, the
// metadata and the owner from acquire, and that no other client gets the lock before the release.
func TestAcquire(t *testing.T) {
	t.Parallel()
	for _, k := range sorts() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			h := word(t, s, append([]string{"acquire", "a b", "--meta", "k=v", "--ttl", "10m"}, k.flags...)...)
			begun := heldBy(t, s, "a b", h)
			require.Equal(t, k.kind, locks(t, s, "info", "a b")[0].Kind)
			require.Equal(t, 600.0, begun.TTL)
			waiter := k.behind(t, s, "a b", "echo $LOCK_TOKEN")

			require.InDelta(t, 595, extend(t, s, h), 4)
			require.InDelta(t, 3592, extend(t, s, h, "--ttl", "1h"), 4)
			require.GreaterOrEqual(t, extend(t, s, h), 3580, "it keeps a later end")
			code, out, errs := run(t, s, "extend", "--json", h)
			require.Zero(t, code, errs)
			var printed scripted
			require.NoError(t, json.Unmarshal([]byte(out), &printed))
			require.Equal(t, []any{h, k.kind, k.mode, "a b", begun.ID, begun.Token}, []any{printed.Handle, printed.Kind, printed.Mode, printed.Name, printed.ID, printed.Token})
			require.Equal(t, k.kind == "semaphore", printed.Slot != nil)
			held := heldBy(t, s, "a b", h)
			require.Equal(t, []any{begun.ID, begun.Token, begun.Since, begun.Owner, begun.PID, begun.Meta}, []any{held.ID, held.Token, held.Since, held.Owner, held.PID, held.Meta})
			require.Equal(t, map[string]string{"k": "v"}, held.Meta)
			require.Equal(t, "script", held.Purpose)
			_, out, _ = run(t, s, "info", "a b")
			require.Regexp(t, `for +script\n`, out)
			require.Empty(t, waiter.out.String(), "beside the script")
			code, _, errs = run(t, s, "check", "--held", "1ms")
			require.Zero(t, code, "it stays by design: %s", errs)
			code, out, errs = run(t, s, "check", "--all", "--held", "1ms")
			require.Equal(t, 1, code, errs)
			require.Contains(t, out, "has been held for")

			code, out, errs = run(t, s, "release", h)
			require.Zero(t, code, errs)
			require.Empty(t, out+errs)
			require.Zero(t, waiter.wait())
			require.Greater(t, strings.TrimSpace(waiter.out.String()), uintString(begun.Token))
			refused(t, s, 75, notHeld+"it is free now", "release", h)
			refused(t, s, 75, notHeld, "extend", h)
		})
	}
}

// TestAcquireOwner checks that the script is listed as the holder, rather than the lockctl process
// that acquired the lock and has exited.
func TestAcquireOwner(t *testing.T) {
	t.Parallel()
	s := serve(t)
	p := startScript(t, s, `H=$("$lockctl" acquire x) && echo "$H"`)
	require.Zero(t, p.wait(), p.out)
	h := heldBy(t, s, "x", strings.TrimSpace(p.out.String()))
	host, _ := os.Hostname()
	require.Equal(t, p.cmd.Process.Pid, h.PID)
	require.Equal(t, host, h.Host)
	require.Regexp(t, fmt.Sprintf("^.+@%s:%d$", host, p.cmd.Process.Pid), h.Owner)
	code, out, errs := run(t, s, "ls")
	require.Zero(t, code, errs)
	require.Contains(t, out, h.Owner)
}

// TestAcquireBroken checks that breaking a script's lock lets no other client in until the script
// releases it or its TTL passes, and that the script's next command reports the break. A break with
// --now does not wait.
func TestAcquireBroken(t *testing.T) {
	t.Parallel()
	for _, k := range sorts() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			flags := strings.Join(k.flags, " ")
			dir := t.TempDir()
			file := func(name string) string { return filepath.Join(dir, name) }
			// A works until the test creates the file "go".
			a := startScript(t, s, `H=$("$lockctl" acquire x --ttl 30s `+flags+`) || exit
				echo "$H" > `+file("handle")+`
				until [ -e `+file("go")+` ]; do sleep 0.05; done
				"$lockctl" extend "$H"; echo "extend $?"
				[ -e `+file("in")+` ] && echo "two are in"
				"$lockctl" release "$H"; echo "release $?"`)
			h := contents(t, file("handle"))
			b := k.behind(t, s, "x", "echo in > "+file("in"))
			operator := startScript(t, s, `"$lockctl" break -f --reason "it hangs" --id `+strings.Split(h, ":")[2]+` x`)
			require.Zero(t, operator.wait(), operator.out)
			require.Regexp(t, `broken: (free|out) when the (holder|writer|reader) has stopped, within (2\d|30)s`, operator.out.String())
			require.Equal(t, "it hangs", heldBy(t, s, "x", h).Broken.Reason)
			require.NoError(t, os.WriteFile(file("go"), nil, 0o600))
			a.wait()
			require.Regexp(t, `(?s)it hangs.*extend 75.*it hangs.*release 75`, a.out.String())
			require.NotContains(t, a.out.String(), "two are in")
			require.Zero(t, b.wait(), b.err)

			h = word(t, s, append([]string{"acquire", "x", "--ttl", "30s"}, k.flags...)...)
			code, out, errs := run(t, s, "break", "-f", "--now", "x")
			require.Zero(t, code, errs)
			require.Contains(t, out, "may still be working")
			holder, _ := hold(t, s, "x", k.others...)
			refused(t, s, 75, "", "extend", h)
			refused(t, s, 75, "", "release", h)
			holder.signal(syscall.SIGTERM)
			holder.wait()
		})
	}
}

// TestBreakHandedOver checks that a script cannot extend a lock that a program has handed off, and
// that breaking the lock waits for the holder to stop or the lease to end, unless --now is given.
func TestBreakHandedOver(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c, err := natslock.New(t.Context(), s.Connect())
	require.NoError(t, err)
	defer c.Close(context.Background())
	l, err := c.Lock(t.Context(), "x", natslock.TTL(time.Hour))
	require.NoError(t, err)
	h, err := l.Handoff(t.Context())
	require.NoError(t, err)
	text, err := h.MarshalText()
	require.NoError(t, err)
	refused(t, s, 64, "only a program can adopt it", "extend", string(text))
	code, out, errs := run(t, s, "break", "-f", "x")
	require.Zero(t, code, errs)
	require.Regexp(t, `free when the holder has stopped, within 59m\d\ds`, out)
	code, _, errs = run(t, s, "break", "-f", "--now", "x")
	require.Zero(t, code, errs)
	require.Empty(t, locks(t, s, "ls"))
}

// TestAcquireLost checks that when a lock expires between two commands of a script, the next
// command reports the loss.
func TestAcquireLost(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	for _, command := range []string{"extend", "release"} {
		expired := word(t, s, "acquire", "x", "--ttl", "3s")
		code, out, errs := run(t, s, "run", "x", "--", "sh", "-c", "echo $LOCK_TOKEN")
		require.Zero(t, code, errs)
		require.Greater(t, strings.TrimSpace(out), strings.Split(expired, ":")[3], "a fencing token above that of the script")
		refused(t, s, 75, notHeld+"it is free now; work after that was not protected", command, expired)

		taken := word(t, s, "acquire", "x", "--ttl", "3s")
		holder, _ := hold(t, s, "x")
		refused(t, s, 75, fmt.Sprintf("%d sh has it now (token ", holder.cmd.Process.Pid), command, taken)
		holder.signal(syscall.SIGTERM)
		holder.wait()
		written := word(t, s, "acquire", "--write", "x", "--ttl", "3s")
		reader, _ := hold(t, s, "x", "--read")
		refused(t, s, 75, notHeld+"readers hold it now", command, written)
		reader.signal(syscall.SIGTERM)
		reader.wait()
	}
}

// TestAcquireRace checks that scripts competing for a lock take turns.
func TestAcquireRace(t *testing.T) {
	t.Parallel()
	s := serve(t)
	dir := t.TempDir()
	inside := filepath.Join(dir, "inside")
	var scripts []*script
	const rounds = 5
	for range 2 {
		scripts = append(scripts, startScript(t, s, fmt.Sprintf(`set -e
			for i in %s; do
				H=$("$lockctl" acquire x --ttl 10m)
				mkdir %s
				"$lockctl" extend "$H"
				rmdir %[2]s
				"$lockctl" release "$H"
				echo round >> %s
			done`, strings.Repeat("x ", rounds), inside, filepath.Join(dir, "rounds"))))
	}
	for _, p := range scripts {
		require.Zero(t, p.wait(), p.out)
	}
	b, err := os.ReadFile(filepath.Join(dir, "rounds"))
	require.NoError(t, err)
	require.Equal(t, 2*rounds, strings.Count(string(b), "round"))
	require.Empty(t, locks(t, s, "ls"))
}

// TestAcquireKilled checks that a killed script's lock is granted to others only after its TTL.
func TestAcquireKilled(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := serve(t)
	file := filepath.Join(t.TempDir(), "handle")
	asked := time.Now()
	p := startScript(t, s, `H=$("$lockctl" acquire x --ttl 3s) && echo "$H" > `+file+`; exec sleep 60`)
	handle := contents(t, file)
	require.NoError(t, p.cmd.Process.Kill())
	code, out, errs := run(t, s, "run", "x", "--", "sh", "-c", "echo $LOCK_TOKEN")
	require.Zero(t, code, errs)
	require.Greater(t, time.Since(asked), 3*time.Second, "before the TTL had passed")
	require.Greater(t, strings.TrimSpace(out), strings.Split(handle, ":")[3])
	refused(t, s, 75, notHeld, "release", handle)
}

// TestAcquireWaits checks that acquire waits and gives up as run does.
func TestAcquireWaits(t *testing.T) {
	t.Parallel()
	s := serve(t)
	handle := word(t, s, "acquire", "x")
	code, out, errs := gaveUp(t, s, "acquire", "x")
	require.Equal(t, 1, code, errs)
	require.Empty(t, out)
	require.Contains(t, errs, "gave up after")
	p := start(t, s, "acquire", "x")
	awaitQueue(t, s, "x", 1)
	p.signal(syscall.SIGTERM)
	require.Equal(t, 128+15, p.wait())
	require.Empty(t, p.out.String())
	awaitQueue(t, s, "x", 0)
	p = start(t, s, "acquire", "--wait", "60", "x")
	awaitQueue(t, s, "x", 1)
	code, _, errs = run(t, s, "release", handle)
	require.Zero(t, code, errs)
	require.Zero(t, p.wait(), p.err)
	extend(t, s, strings.TrimSpace(p.out.String()))
}

// TestAcquireJSON checks that --json reports the token and the expiry.
func TestAcquireJSON(t *testing.T) {
	t.Parallel()
	s := serve(t)
	began := time.Now()
	code, out, errs := run(t, s, "acquire", "a:b", "--ttl", "90s", "--json", "--owner", "nightly")
	require.Zero(t, code, errs)
	var first, second scripted
	require.NoError(t, json.Unmarshal([]byte(out), &first))
	holder := heldBy(t, s, "a:b", first.Handle)
	require.Equal(t, "nightly", holder.Owner)
	require.Equal(t, scripted{first.Handle, "mutex", "exclusive", "a:b", holder.ID, nil, holder.Token, 90, first.Valid, first.ValidUntil, first.ValidUntil.Add(time.Second)}, first)
	require.WithinRange(t, first.Expires, began.Add(90*time.Second), time.Now().Add(90*time.Second))
	require.False(t, holder.Expires.Before(first.Expires.Truncate(time.Second)), "the server frees it no sooner: %v", holder.Expires)
	code, out, errs = run(t, s, "extend", "--json", first.Handle)
	require.Zero(t, code, errs)
	require.NoError(t, json.Unmarshal([]byte(out), &second))
	require.Equal(t, first.Handle, second.Handle)
	require.Equal(t, first.Token, second.Token)
	require.True(t, second.ValidUntil.After(first.ValidUntil))
}

// TestAcquireUnread checks that acquire releases the lock if it cannot print the handle, because
// otherwise no script could.
func TestAcquireUnread(t *testing.T) {
	t.Parallel()
	s := serve(t)
	r, gone, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	defer gone.Close()
	outputs := map[string]*os.File{"reader": gone}
	if full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0); err == nil {
		defer full.Close()
		outputs["disk"] = full
	}
	for name, out := range outputs {
		cmd := exec.Command(binary, "-s", s.URL(), "acquire", name)
		cmd.Env = append(cleanEnv(), "XDG_CONFIG_HOME="+t.TempDir())
		cmd.Stdout, cmd.Stderr = out, &kit.Log{}
		require.Error(t, cmd.Run())
		require.Equal(t, 70, cmd.ProcessState.ExitCode(), name)
		require.Contains(t, fmt.Sprint(cmd.Stderr), "cannot print the handle of lock "+name)
		code, _, errs := run(t, s, "run", "-n", name, "--", "true")
		require.Zero(t, code, errs)
	}
}

// script is a running shell script that calls lockctl.
type script struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  *kit.Log
	done chan struct{}
}

func startScript(t *testing.T, s *testutil.Server, text string) *script {
	t.Helper()
	p := &script{t: t, cmd: exec.Command("sh", "-c", text), out: &kit.Log{}, done: make(chan struct{})}
	p.cmd.Env = append(cleanEnv(), "XDG_CONFIG_HOME="+t.TempDir(), "NATS_URL="+s.URL(), "lockctl="+binary)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.WaitDelay = 2 * time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	require.NoError(t, p.cmd.Start())
	go func() { defer close(p.done); _ = p.cmd.Wait() }()
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
	})
	return p
}

// wait waits for the script to exit and returns its exit code.
func (p *script) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(kit.Patience):
		p.t.Fatalf("the script does not end: %s", p.out)
		return -1
	}
}
