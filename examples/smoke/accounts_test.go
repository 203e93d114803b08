//go:build unix

package smoke_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/testutil"
)

// accounts runs two replicas of the service. They must not lose a posting, and must never work on
// the same account at the same time.
func accounts(t *testing.T, s *testutil.Server) {
	locks, err := natslock.New(t.Context(), s.Connect())
	require.NoError(t, err)
	held := func(id string) admin.Info {
		info, err := admin.New(locks).Inspect(t.Context(), admin.KindMutex, natslock.Join("accounts", id))
		require.NoError(t, err)
		return info
	}
	bank := newBank(t)
	a, b := bank.replica(s, "-wait", "1m"), bank.replica(s, "-wait", "1m")
	impatient := bank.replica(s, "-wait", "1s")

	// Different accounts are processed concurrently, even within one replica.
	openX, openY := bank.hold("x"), bank.hold("y")
	x, y := a.post("x"), a.post("y")
	<-bank.asked
	<-bank.asked
	openX()
	openY()
	require.Equal(t, http.StatusOK, (<-x).status)
	require.Equal(t, http.StatusOK, (<-y).status)

	// No posting is lost when both replicas post to both accounts.
	const each = 20
	var posts sync.WaitGroup
	for range 3 {
		for _, r := range []*replica{a, b} {
			for _, id := range []string{"x", "y"} {
				posts.Go(func() {
					for range each {
						r.mustPost(id)
					}
				})
			}
		}
	}
	posts.Wait()
	require.Equal(t, 1+6*each, a.balance("x"))
	require.Equal(t, 1+6*each, b.balance("y"))

	// A request waits neither longer than its limit nor longer than its client.
	openX = bank.hold("x")
	x = a.post("x")
	<-bank.asked
	late := <-impatient.post("x")
	require.Equal(t, http.StatusLocked, late.status)
	require.True(t, late.again)
	ctx, leave := context.WithCancel(t.Context())
	gone := b.postContext(ctx, "x")
	require.Eventually(t, func() bool { return len(held("x").Queue) == 1 }, patience, 5*time.Millisecond)
	leave()
	require.ErrorIs(t, (<-gone).err, context.Canceled)
	require.Eventually(t, func() bool { return len(held("x").Queue) == 0 }, patience, 5*time.Millisecond)

	// A replica that shuts down lets in-flight requests finish and releases their accounts.
	openY = bank.hold("y")
	y = a.post("y")
	<-bank.asked
	next := b.post("y")
	require.NoError(t, a.cmd.Process.Signal(syscall.SIGTERM))
	a.await(`shutting down, requests in progress: 2`)
	refused := <-a.post("z")
	require.Equal(t, http.StatusServiceUnavailable, refused.status)
	require.True(t, refused.again)
	openX()
	openY()
	require.Equal(t, http.StatusOK, (<-x).status)
	require.Equal(t, http.StatusOK, (<-y).status)
	a.mustEnd()
	require.Nil(t, held("x").Holder, "it is released before its TTL ends")
	require.Equal(t, http.StatusOK, (<-next).status)
	require.Equal(t, 2+6*each, b.balance("x"))
	require.Equal(t, 3+6*each, b.balance("y"))

	// While the server is down, clients are turned away.
	s.Stop()
	away := <-impatient.post("x")
	require.Equal(t, http.StatusServiceUnavailable, away.status)
	require.True(t, away.again)
	require.Equal(t, http.StatusServiceUnavailable, (<-impatient.send(t.Context(), http.MethodGet, "/healthz")).status)
	s.Restart()
	impatient.mustPost("x")
	require.Equal(t, 3+6*each, impatient.balance("x"))
	require.Equal(t, http.StatusOK, (<-impatient.send(t.Context(), http.MethodGet, "/healthz")).status)

	for path, status := range map[string]int{
		"/accounts/x/postings?amount=much":  http.StatusBadRequest,
		"/accounts/x%20y/postings?amount=1": http.StatusBadRequest,
		"/accounts/poor/postings?amount=1":  http.StatusForbidden,
	} {
		require.Equal(t, status, (<-b.send(t.Context(), http.MethodPost, path)).status, path)
	}
	require.Equal(t, http.StatusNotFound, (<-b.send(t.Context(), http.MethodGet, "/accounts/poor")).status)
}

// TestStaleReplica pauses a replica while it works on an account. By the time it wakes up, another
// replica has changed the account, so the bucket must refuse the first replica's write.
func TestStaleReplica(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	bank, s := newBank(t), testutil.RunServer(t)
	a, b := bank.replica(s, "-ttl", "2s", "-wait", "1m"), bank.replica(s, "-ttl", "2s", "-wait", "1m")
	open := bank.hold("x")
	stale := a.post("x")
	<-bank.asked
	require.NoError(t, a.cmd.Process.Signal(syscall.SIGSTOP))
	bank.forget("x") // the first replica is still inside, but has lost its lock
	b.mustPost("x")
	require.NoError(t, a.cmd.Process.Signal(syscall.SIGCONT))
	open()
	got := <-stale
	// The write is stopped either by the lock's context or by the bucket. If the context ends during
	// the write, the replica never learns that the bucket has refused it.
	require.Contains(t, []int{http.StatusServiceUnavailable, http.StatusConflict, http.StatusInternalServerError}, got.status)
	require.Equal(t, got.status != http.StatusInternalServerError, got.again)
	require.Equal(t, 1, b.balance("x"))
	a.mustPost("x")
	require.Equal(t, 2, b.balance("x"))
}

// bank approves postings. It detects concurrent postings to the same account, and tokens that do
// not increase.
type bank struct {
	t     *testing.T
	url   string
	asked chan string // accounts on hold that have asked for approval

	mu    sync.Mutex
	at    map[string]*counter
	gates map[string]chan struct{}
}

type counter struct {
	inside   int
	greatest uint64
}

func newBank(t *testing.T) *bank {
	b := &bank{t: t, asked: make(chan string, 10), at: map[string]*counter{}, gates: map[string]chan struct{}{}}
	server := httptest.NewServer(b)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	t.Cleanup(server.Close)
	b.url = server.URL
	return b
}

// hold blocks the next approval for an account until open is called.
func (b *bank) hold(account string) (open func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	gate := make(chan struct{})
	b.gates[account] = gate
	open = sync.OnceFunc(func() { close(gate) })
	b.t.Cleanup(open)
	return open
}

// forget resets what the bank has recorded for an account.
func (b *bank) forget(account string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.at, account)
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	account := r.FormValue("account")
	token, err := strconv.ParseUint(r.Header.Get("Fencing-Token"), 10, 64)
	b.mu.Lock()
	at := b.at[account]
	if at == nil {
		at = &counter{}
		b.at[account] = at
	}
	if at.inside++; at.inside > 1 || err != nil || token <= at.greatest {
		b.t.Errorf("%s: %d at a time, token %d after %d, %v", account, at.inside, token, at.greatest, err)
	}
	at.greatest = token
	gate := b.gates[account]
	delete(b.gates, account)
	b.mu.Unlock()
	if gate != nil {
		b.asked <- account
		<-gate
	}
	b.mu.Lock()
	at.inside--
	b.mu.Unlock()
	if account == "poor" {
		w.WriteHeader(http.StatusForbidden)
	}
}

// replica is a running process of the service.
type replica struct {
	*process
	url string
}

func (b *bank) replica(s *testutil.Server, args ...string) *replica {
	p := start(b.t, s, "accounts", append(args, "-listen", "127.0.0.1:0", "-approve", b.url)...)
	return &replica{p, p.await(`serving (http://\S+)`)[1]}
}

// outcome is the result of a request.
type outcome struct {
	status int
	again  bool // the response has a Retry-After header
	body   []byte
	err    error
}

// send sends a request without waiting for the response.
func (r *replica) send(ctx context.Context, method, path string) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		done <- func() outcome {
			request, err := http.NewRequestWithContext(ctx, method, r.url+path, nil)
			if err != nil {
				return outcome{err: err}
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return outcome{err: err}
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			return outcome{response.StatusCode, response.Header.Get("Retry-After") != "", body, err}
		}()
	}()
	return done
}

func (r *replica) post(id string) <-chan outcome { return r.postContext(r.t.Context(), id) }

func (r *replica) postContext(ctx context.Context, id string) <-chan outcome {
	return r.send(ctx, http.MethodPost, "/accounts/"+url.PathEscape(id)+"/postings?amount=1")
}

// mustPost retries until the posting is stored.
func (r *replica) mustPost(id string) {
	for end := time.Now().Add(patience); ; {
		o := <-r.post(id)
		if o.status == http.StatusOK {
			return
		}
		if !o.again || time.Now().After(end) {
			r.t.Errorf("post to %s: %d %s, %v", id, o.status, o.body, o.err)
			return
		}
	}
}

func (r *replica) balance(id string) int {
	r.t.Helper()
	o := <-r.send(r.t.Context(), http.MethodGet, "/accounts/"+url.PathEscape(id))
	var a struct{ Balance int }
	require.NoError(r.t, errors.Join(o.err, json.Unmarshal(o.body, &a)), "%s", o.body)
	return a.Balance
}
