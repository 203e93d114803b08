//go:build unix

package cluster_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/machine"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// process is the test binary running in a role.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	once sync.Once
}

// start starts a process that is killed at the end of the test if it is still running.
func start(t testing.TB, role string, order any) *process {
	t.Helper()
	text, err := json.Marshal(order)
	require.NoError(t, err)
	p := &process{t: t, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), roleVar+"="+role, orderVar+"="+string(text))
	p.cmd.Stderr = os.Stderr
	// Give it a process group of its own. If the test process dies, the kernel then wakes and ends
	// any processes that it left stopped.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewReader(out)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(p.kill)
	return p
}

// read decodes the next message of the process into v.
func (p *process) read(v any) {
	p.t.Helper()
	type line struct {
		text []byte
		err  error
	}
	got := make(chan line, 1)
	go func() {
		text, err := p.out.ReadBytes('\n')
		got <- line{text, err}
	}()
	l := kit.Receive(p.t, got, "a message of the process")
	require.NoError(p.t, l.err)
	require.NoError(p.t, json.Unmarshal(l.text, v))
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(sig))
}

// kill sends SIGKILL and waits until the process has exited.
func (p *process) kill() {
	p.once.Do(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	})
}

// stage is a server with a client, a protected resource, and a view of the records in the bucket.
type stage struct {
	s     *testutil.Server
	c     *natslock.Client
	store *kvstore.Store
	wire  *wire
	work  resource
}

const processTTL = 2 * time.Second

func newStage(t *testing.T) *stage {
	t.Helper()
	st := &stage{s: testutil.RunServer(t)}
	nc := st.s.Connect()
	st.c = kit.NewClient(t, nc, natslock.WithTTL(processTTL))
	st.store, st.work = kit.OpenStore(t, nc), makeResource(t, nc)
	st.wire = tap(t, st.store)
	return st
}

// startHolder starts a process that holds the locks.
func (st *stage) startHolder(t *testing.T, locks []which) *process {
	t.Helper()
	return start(t, "holder", holderOrder{URL: st.s.URL(), TTL: processTTL, Locks: locks})
}

// TestHolderKilled kills processes that hold a mutex, a write lock and a read lock. Each waiter
// must get in at the end of the lease or at most half a second later, never earlier, and with a
// higher token.
func TestHolderKilled(t *testing.T) {
	tier.Proof(t)
	st := newStage(t)
	p := st.startHolder(t, oneOfEach)
	var n int
	p.read(&n)
	require.Equal(t, len(oneOfEach), n)
	// Let another process die as a writer that still waits for a reader, and so holds only its
	// gate.
	gate := which{Name: "g", Kind: admin.KindRW}
	mine := mustTake(t, st.c, which{Name: "g", Kind: admin.KindRW, Mode: admin.Shared})
	q := st.startHolder(t, []which{gate})
	kit.Eventually(t, "the gate stands", func() bool {
		info, err := admin.New(st.c).Inspect(t.Context(), admin.KindRW, "g")
		return err == nil && info.Holder != nil
	})

	type held struct {
		which
		key   string
		token uint64
		next  *kit.Waiting
	}
	var all []held
	for _, w := range append([]which{{Name: "g", Kind: admin.KindRW}}, oneOfEach...) {
		r := stored(t, st.store, w.key())
		info, err := admin.New(st.c).Inspect(t.Context(), w.Kind, w.Name)
		require.NoError(t, err)
		h := held{which: w, key: r.Key}
		switch {
		case info.Holder != nil:
			h.token = info.Holder.Token
		default:
			h.token = info.Readers[0].Token
		}
		other := kit.NewClient(t, st.s.Connect(), natslock.WithTTL(processTTL))
		h.next = await(t, other, w.against())
		all = append(all, h)
	}
	for _, h := range all {
		kit.Eventually(t, "it is renewed", func() bool { return st.wire.lastBefore(h.key, math.MaxUint64).Revision > record.TokenRevision(h.token) })
	}
	late := machine.Lateness(t)
	p.kill()
	q.kill()
	require.NoError(t, mine.Unlock(t.Context()))
	for _, h := range all {
		l := h.next.Granted(t)
		require.Greater(t, l.Token(), h.token)
		before := record.TokenRevision(l.Token())
		if h.Mode == admin.Shared {
			before = math.MaxUint64 // the token is that of the gate, which was written while the reader was still renewing
		}
		last := st.wire.lastBefore(h.key, before)
		waited := h.next.At.Sub(last.Time)
		// The server, the waiter and this test may each be delayed once.
		limit := processTTL + 500*time.Millisecond + 3*late()
		t.Logf("%v: in %v after the last renewal, of %v", h, waited, limit)
		require.GreaterOrEqual(t, waited, processTTL, "%v", h)
		require.LessOrEqual(t, waited, limit, "%v", h)
		require.NoError(t, l.Unlock(t.Context()))
	}
}

// TestHolderStopped stops processes that hold a mutex, a write lock and a read lock for longer than
// their leases and then continues them. By then others hold the locks. A worker that checks its
// lock must find it lost before it writes, and the resource must refuse the writes of a worker that
// does not check. No write of the process may bring a lock back, not even one that nobody else has
// taken.
func TestHolderStopped(t *testing.T) {
	tier.Proof(t)
	st := newStage(t)
	type held struct {
		which
		next  *kit.Waiting
		got   *natslock.Lock
		wrote uint64
	}
	const processes = 3
	var ps []*process
	var all []*held
	for i := range processes {
		var mine []which
		for _, w := range append(oneOfEach[:3:3], which{Name: "nobody."}) {
			w.Name += fmt.Sprint(i)
			mine = append(mine, w)
		}
		p := st.startHolder(t, mine)
		ps = append(ps, p)
		for _, w := range mine {
			all = append(all, &held{which: w})
		}
	}
	for _, p := range ps {
		p.read(new(int))
	}
	other := kit.NewClient(t, st.s.Connect(), natslock.WithTTL(processTTL))
	taken := func(yield func(*held) bool) {
		for i, h := range all {
			if i%4 < 3 && !yield(h) {
				return
			}
		}
	}
	for h := range taken {
		h.next = await(t, other, h.against())
	}
	for _, p := range ps {
		p.signal(syscall.SIGSTOP)
	}
	for h := range taken {
		h.got = h.next.Granted(t)
		// The next holder is at work. Its predecessor may have been stopped in the middle of a
		// write.
		kit.Eventually(t, "the next holder writes", func() (done bool) {
			var err error
			h.wrote, err = st.work.write(t.Context(), h.Name, h.got.Token())
			return err == nil
		})
	}
	kit.Eventually(t, "the others' records are gone too", func() bool {
		l, err := st.store.List(t.Context(), "lock.nobody.*", 0)
		return err == nil && len(l.Records) == 0
	})
	continued := time.Now()
	for _, p := range ps {
		p.signal(syscall.SIGCONT)
	}
	// Allow enough time for all late messages to arrive and for any lock to be renewed.
	time.Sleep(processTTL / 2)
	for i, p := range ps {
		_, err := io.WriteString(p.in, "report\n")
		require.NoError(t, err)
		var reports []report
		p.read(&reports)
		require.Len(t, reports, 4)
		for k, r := range reports {
			h := all[4*i+k]
			require.Equal(t, h.which, r.Which)
			require.True(t, r.Checked.Before(continued), "%v: held %v after it went on", h, r.Checked.Sub(continued))
			if h.got != nil {
				require.Less(t, r.Token, h.got.Token())
				require.True(t, r.Accepted.Before(continued), "%v: a write begun %v after it went on was accepted", h, r.Accepted.Sub(continued))
				require.Positive(t, r.Refused, "%v: it went on working", h)
			}
			require.False(t, r.LostAt.IsZero(), "%v", h)
			require.False(t, r.DoneAt.IsZero(), "%v", h)
			require.Contains(t, r.Cause, natslock.ErrLost.Error())
			require.False(t, r.Revived, "%v", h)
			require.Contains(t, r.Extend, natslock.ErrLost.Error())
			require.Contains(t, r.Unlock, natslock.ErrLost.Error())
			t.Logf("%v: done %v after it went on, %d writes refused", h, r.DoneAt.Sub(continued), r.Refused)
		}
	}
	for h := range taken {
		require.Positive(t, h.got.Remaining(), "%v: the next holder is still in", h)
		e, err := st.work.kv.Get(t.Context(), h.Name)
		require.NoError(t, err)
		require.Equal(t, h.wrote, e.Revision(), "%v: the resource was written by the holder before", h)
		require.NoError(t, h.got.Unlock(t.Context()))
	}
	l, err := st.store.List(t.Context(), ">", 0)
	require.NoError(t, err)
	require.Empty(t, l.Records, "a renewal has brought a record back")
}
