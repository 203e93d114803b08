package tusdlock_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"
	"golang.org/x/exp/slog"

	tusdlock "github.com/natslock/locks/adapters/tusd"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// uploadID contains characters that a store may use in an ID but that do not occur in file names.
const uploadID = "tenant-1/2026.11/a+b@c"

// tus is a tusd server together with an HTTP client for it.
type tus struct {
	url    string
	client *http.Client
	locks  *natslock.Client
	read   *counter
}

// serve starts a server that shares the directory with others.
func serve(t *testing.T, s *testutil.Server, dir string, lockTimeout time.Duration) *tus {
	t.Helper()
	srv := &tus{locks: join(t, s.Connect()), read: newCounter()}
	composer := handler.NewStoreComposer()
	store := filestore.New(dir)
	store.UseIn(composer)
	composer.UseCore(counted{store, srv.read})
	tusdlock.New(srv.locks).UseIn(composer)
	h, err := handler.NewHandler(handler.Config{
		BasePath:      "/files/",
		StoreComposer: composer,
		Logger:        slog.New(slog.NewTextHandler(io.Discard, nil)),
		PreUploadCreateCallback: func(handler.HookEvent) (handler.HTTPResponse, handler.FileInfoChanges, error) {
			return handler.HTTPResponse{}, handler.FileInfoChanges{ID: uploadID}, nil
		},
		AcquireLockTimeout:               lockTimeout,
		GracefulRequestCompletionTimeout: time.Millisecond, // a goroutine of tusd waits this long
	})
	require.NoError(t, err)
	web := httptest.NewServer(http.StripPrefix("/files/", h))
	t.Cleanup(web.Close)
	srv.url, srv.client = web.URL+"/files/", web.Client()
	return srv
}

// do sends a request for the upload. It returns the response and its body as text.
func (s *tus) do(ctx context.Context, method, path string, body io.Reader, header map[string]string) (*http.Response, string, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, body)
	if err != nil {
		return nil, "", err
	}
	req.Header.Set("Tus-Resumable", "1.0.0")
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp, string(text), err
}

// create creates an upload.
func (s *tus) create(t *testing.T, ctx context.Context, size int) {
	t.Helper()
	resp, text, err := s.do(ctx, "POST", "", nil, map[string]string{"Upload-Length": strconv.Itoa(size)})
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, resp.StatusCode, text)
	require.Equal(t, s.url+uploadID, resp.Header.Get("Location"))
}

// offset asks how much of the upload the server has. Its request waits for the upload's lock.
func (s *tus) offset(t *testing.T, ctx context.Context) int {
	t.Helper()
	resp, _, err := s.do(ctx, "HEAD", uploadID, nil, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode)
	offset, err := strconv.Atoi(resp.Header.Get("Upload-Offset"))
	require.NoError(t, err)
	return offset
}

func (s *tus) patch(ctx context.Context, offset int, body io.Reader) (*http.Response, string, error) {
	return s.do(ctx, "PATCH", uploadID, body, map[string]string{
		"Upload-Offset": strconv.Itoa(offset), "Content-Type": "application/offset+octet-stream",
	})
}

// hang sends part of the upload in a request that never ends, as if the client had lost its
// connection. It returns once the server has read that part. The channel receives the response.
func (s *tus) hang(t *testing.T, ctx context.Context, offset int, part []byte) <-chan string {
	t.Helper()
	from, to := io.Pipe()
	t.Cleanup(func() { to.Close() })
	response := make(chan string, 1)
	go func() {
		resp, text, err := s.patch(ctx, offset, from)
		from.Close()
		if err != nil {
			response <- err.Error()
			return
		}
		response <- fmt.Sprint(resp.StatusCode, " ", text)
	}()
	want := s.read.total() + len(part)
	_, err := to.Write(part)
	require.NoError(t, err)
	require.NoError(t, s.read.await(ctx, want))
	return response
}

// TestHandOver checks that a client can repeatedly resume an upload while its previous request
// still hangs, whether on the other server or on the same one.
func TestHandOver(t *testing.T) {
	for name, servers := range map[string]int{"one server": 1, "two servers": 2} {
		t.Run(name, func(t *testing.T) {
			s := testutil.RunServer(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			dir := t.TempDir()
			var at []*tus
			for range servers {
				at = append(at, serve(t, s, dir, patience))
			}
			data := make([]byte, 1<<20)
			_, _ = rand.Read(data)
			at[0].create(t, ctx, len(data))

			const parts = 5
			offset := 0
			for i := range parts - 1 {
				here, next := at[i%servers], at[(i+1)%servers]
				end := offset + len(data)/parts
				response := here.hang(t, ctx, offset, data[offset:end])
				offset = next.offset(t, ctx)
				require.Equal(t, end, offset, "no byte that has arrived is lost")
				require.Contains(t, <-response, "ERR_UPLOAD_INTERRUPTED")
			}
			resp, text, err := at[(parts-1)%servers].patch(ctx, offset, bytes.NewReader(data[offset:]))
			require.NoError(t, err)
			require.Equal(t, http.StatusNoContent, resp.StatusCode, text)
			stored(t, dir, data)
			for _, srv := range at {
				require.Zero(t, srv.locks.Stats().Lost+srv.locks.Stats().Broken)
			}
		})
	}
}

// stored requires that the upload is complete and consists of data.
func stored(t *testing.T, dir string, data []byte) {
	t.Helper()
	got, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(uploadID)))
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, got), "the bytes of the upload: %d of %d", len(got), len(data))
}

// TestLossStopsRequest checks that a request is stopped when its lock is lost, and that another
// server can continue the upload.
func TestLossStopsRequest(t *testing.T) {
	s := testutil.RunServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dir := t.TempDir()
	first, second := serve(t, s, dir, patience), serve(t, s, dir, patience)
	data := make([]byte, 1<<16)
	_, _ = rand.Read(data)
	first.create(t, ctx, len(data))

	response := first.hang(t, ctx, 0, data[:10_000])
	breakLock(t, second.locks, uploadID)
	require.Contains(t, <-response, "ERR_UPLOAD_INTERRUPTED")
	require.EqualValues(t, 1, first.locks.Stats().Broken)
	require.Equal(t, 10_000, second.offset(t, ctx))
	resp, text, err := second.patch(ctx, 10_000, bytes.NewReader(data[10_000:]))
	require.NoError(t, err)
	require.Equal(t, http.StatusNoContent, resp.StatusCode, text)
	stored(t, dir, data)
}

// TestLockTimeout checks that a request that does not get the lock in time says so.
func TestLockTimeout(t *testing.T) {
	s := testutil.RunServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dir := t.TempDir()
	srv, patient := serve(t, s, dir, time.Second), serve(t, s, dir, patience)
	srv.create(t, ctx, 10)
	held, err := srv.locks.Lock(ctx, tusdlock.Prefix+uploadID)
	require.NoError(t, err)
	contended := held.Contended()
	resp, text, err := srv.patch(ctx, 0, bytes.NewReader(make([]byte, 10)))
	require.NoError(t, err)
	require.Equal(t, http.StatusInternalServerError, resp.StatusCode)
	require.Contains(t, text, "ERR_LOCK_TIMEOUT")
	require.Zero(t, srv.read.total())
	require.NoError(t, receive(ctx, contended))
	require.NoError(t, held.Unlock(ctx))
	require.Zero(t, patient.offset(t, ctx))
}

func receive(ctx context.Context, ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// counter counts the bytes that a server has read from its requests.
type counter struct {
	mu   sync.Mutex
	more *sync.Cond
	n    int
}

func newCounter() *counter {
	c := &counter{}
	c.more = sync.NewCond(&c.mu)
	return c
}

func (c *counter) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

func (c *counter) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += len(p)
	c.more.Broadcast()
	return len(p), nil
}

// await waits until n bytes have been read.
func (c *counter) await(ctx context.Context, n int) error {
	defer context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.more.Broadcast()
	})()
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.n < n {
		if ctx.Err() != nil {
			return fmt.Errorf("%d of %d bytes: %w", c.n, n, ctx.Err())
		}
		c.more.Wait()
	}
	return nil
}

// counted is a store whose uploads count the bytes that they read.
type counted struct {
	handler.DataStore
	read *counter
}

func (c counted) GetUpload(ctx context.Context, id string) (handler.Upload, error) {
	u, err := c.DataStore.GetUpload(ctx, id)
	if err != nil {
		return nil, err
	}
	return countedUpload{u, c.read}, nil
}

type countedUpload struct {
	handler.Upload
	read *counter
}

func (u countedUpload) WriteChunk(ctx context.Context, offset int64, src io.Reader) (int64, error) {
	return u.Upload.WriteChunk(ctx, offset, io.TeeReader(src, u.read))
}
