package kvstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/plain"
)

const (
	hdrStream    = "Nats-Stream"
	hdrSubject   = "Nats-Subject"
	hdrTimeStamp = "Nats-Time-Stamp"
	hdrUpTo      = "Nats-UpTo-Sequence"
	// hdrDescription is nats.go's name for the text behind a status.
	hdrDescription = "Description"

	// lagRetries is how often a replica that lags is asked again. Most lag by less
	// than a millisecond: the pauses begin with firstLag and double, 77 ms in all.
	lagRetries = 8
	firstLag   = 300 * time.Microsecond
)

// errUnreadable: the server's own headers are not where they should be, because
// those of the record's writer are broken, or are not those of this stream.
var errUnreadable = errors.New("unreadable record")

// Get returns the record under key; see [KV].
func (s *Store) Get(ctx context.Context, key string, min uint64) (Record, error) {
	if err := checkKey(key); err != nil {
		return Record{}, err
	}
	r, err := s.read(ctx, key)
	// A replica that lags shows what the caller knows to be over.
	if min > 0 && (errors.Is(err, ErrNotFound) || err == nil && r.Revision < min) { //safety:read-as-of
		r, err = s.readAsOf(ctx, key, min)
	}
	if err != nil {
		return Record{}, fmt.Errorf("read %q: %w", key, err)
	}
	return r, nil
}

// read reads a key from any replica, where the bucket allows that.
func (s *Store) read(ctx context.Context, key string) (Record, error) {
	if !s.seen.Load().direct {
		r, err := s.leaderGet(ctx, key)
		return r, undirected(err)
	}
	r, err := s.directGet(ctx, key)
	switch {
	case errors.Is(err, errUnreadable):
		return s.leaderGet(ctx, key) // its answer has the position outside of the record's headers
	case errors.Is(err, nats.ErrNoResponders):
		// An account that imports the bucket may not import this way of reading.
		// Or an administrator has turned it off.
		l, refused := s.leaderGet(ctx, key)
		if refused == nil || errors.Is(refused, ErrNotFound) || errors.Is(refused, ErrPermission) {
			s.doubtRefusal(doubtEvery)
			return l, undirected(refused)
		}
	}
	return r, err
}

// undirected returns the error of a read from the leader that no replica can answer instead. A
// refusal is no reason to give up: an administrator can repair the setting.
func undirected(err error) error {
	if errors.Is(err, ErrPermission) {
		return fmt.Errorf("%w: %w: no server answers direct gets, as when allow_direct is off (\"lockctl init\" repairs it), and the leader refuses: %v", ErrUnavailable, ErrWithheld, err)
	}
	return err
}

// readAsOf reads a key again, after a read of a state that may be older than
// revision min: nothing, or a lower revision. That is the truth if a leader
// that has applied min confirms it.
func (s *Store) readAsOf(ctx context.Context, key string, min uint64) (Record, error) {
	for try := 0; ; try++ {
		st, err := s.stateAt(ctx, key, min)
		if err != nil {
			return Record{}, err
		}
		if len(st.Keys) == 0 {
			return Record{}, ErrNotFound
		}
		r, err := s.leaderGet(ctx, key)
		if errors.Is(err, ErrNotFound) { //safety:nothing-proven
			// Ended since, or answered by a leader that was deposed and does not
			// contain min: only a state that does proves that there is nothing.
			switch again, ended := lagged(ctx, try); {
			case ended != nil:
				return Record{}, ended
			case !again:
				return Record{}, fmt.Errorf("%w: the leader names the key %q and has no record of it", ErrUnavailable, key)
			}
			continue
		}
		if !withheld(err) || !s.seen.Load().direct {
			return r, undirected(err)
		}
		// The leader's read shows any key, so it may be withheld where reading
		// single keys is granted, or not be imported. A replica that is not
		// behind will do, and the only server there is never is.
		r, direct := s.directGet(ctx, key)
		if direct == nil && r.Revision >= min || errors.Is(direct, ErrPermission) || s.Alone() {
			return r, direct
		}
		switch again, ended := lagged(ctx, try); {
		case ended != nil:
			return Record{}, ended
		case !again:
			return Record{}, fmt.Errorf("%w: %w: no replica shows what is known to be there at revision %d, and \"lockctl perms\" prints what lets the leader be asked: %v",
				ErrUnavailable, ErrWithheld, min, err)
		}
	}
}

// withheld reports whether the error is that of a request which this user may not make,
// or which its account does not import.
func withheld(err error) bool {
	return errors.Is(err, ErrPermission) || errors.Is(err, nats.ErrNoResponders)
}

// lagged pauses before a replica that lags is asked again. It returns false at once
// when that was often enough.
func lagged(ctx context.Context, try int) (again bool, err error) {
	if try == lagRetries {
		return false, nil
	}
	return true, pause(ctx, firstLag<<try)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return plain.EndOf(ctx)
	}
}

type msgGetResponse struct {
	Error   *jetstream.APIError `json:"error"`
	Message struct {
		Subject string    `json:"subject"`
		Seq     uint64    `json:"seq"`
		Header  []byte    `json:"hdrs"`
		Data    []byte    `json:"data"`
		Time    time.Time `json:"time"`
	} `json:"message"`
}

func (r *msgGetResponse) apiError() *jetstream.APIError { return r.Error }

// leaderGet reads from the stream's leader. It reads any key, so it may be withheld
// where reading single keys is granted. A refusal is not an answer: it takes its
// time to notice, so one request is enough.
func (s *Store) leaderGet(ctx context.Context, key string) (Record, error) {
	if s.leaderOff.Load() {
		return Record{}, fmt.Errorf("%w: the server has refused this user to read from the stream's leader", ErrPermission)
	}
	body, _ := json.Marshal(map[string]string{"last_by_subj": s.prefix + key})
	var resp msgGetResponse
	if err := s.api(ctx, "STREAM.MSG.GET."+s.stream, body, &resp, own); err != nil {
		if errors.Is(err, ErrPermission) {
			s.leaderOff.Store(true)
		}
		return Record{}, err
	}
	m := resp.Message
	// A header that cannot be read names neither TTL nor deletion: to be safe
	// that is a record which stays.
	h, _ := nats.DecodeHeadersMsg(m.Header)
	return Record{
		Key: strings.TrimPrefix(m.Subject, s.prefix), Value: m.Data, Revision: m.Seq, Time: m.Time,
		TTL: parseTTL(h.Get(hdrTTL)), Deleted: isTombstone(h),
	}.of(key)
}

// of returns r if it is a record of key. Anything else that was answered says
// nothing about the key, least of all that there is no record.
func (r Record) of(key string) (Record, error) {
	if r.Key != key || r.Revision == 0 { //safety:answer-of-key
		return Record{}, fmt.Errorf("%w: asked for %q, the answer is about %.64q at revision %d", ErrUnavailable, key, r.Key, r.Revision)
	}
	return r, nil
}

// record reads a message that the server delivered with its position in the
// headers. The key is taken from there: an import may rename the subject.
func (s *Store) record(h nats.Header, data []byte) (Record, error) {
	last := func(name string) string { return lastOf(h, name) }
	// A mirror keeps records that the bucket has removed: holders long gone.
	if name := last(hdrStream); name != "" && name != s.stream { //safety:mirror
		s.mirrored(name)
		return Record{}, fmt.Errorf("%w: it comes from stream %.64q", errUnreadable, name)
	}
	seq, err := strconv.ParseUint(last(hdrSequence), 10, 64)
	if err != nil {
		return Record{}, fmt.Errorf("%w: sequence: %w", errUnreadable, err)
	}
	key, ok := strings.CutPrefix(last(hdrSubject), s.prefix)
	if !ok {
		return Record{}, fmt.Errorf("%w: subject %.64q is not of bucket %q", errUnreadable, last(hdrSubject), s.cfg.Bucket)
	}
	at, err := time.Parse(time.RFC3339Nano, last(hdrTimeStamp))
	if err != nil {
		return Record{}, fmt.Errorf("%w: time: %w", errUnreadable, err)
	}
	return Record{Key: key, Value: data, Revision: seq, Time: at, TTL: parseTTL(h.Get(hdrTTL)), Deleted: isTombstone(h)}, nil
}

// lastOf returns the last value of a header. The server adds its headers behind those of
// the record's writer, who may have used the same names.
func lastOf(h nats.Header, name string) string {
	if v := h[name]; len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

// mirrored warns once that a mirror answers reads. The store asks the leader again for
// such a read: a mirror may keep records that the bucket has removed.
func (s *Store) mirrored(name string) {
	if s.mirrorSeen.Swap(true) {
		return
	}
	s.cfg.Logger.Warn(fmt.Sprintf("lock bucket: stream %.64q mirrors this bucket and answers reads of it. Each such read costs a second one. Repair: remove it or its mirror_direct", name),
		"bucket", s.cfg.Bucket)
}

func isTombstone(h nats.Header) bool {
	op := h.Get(hdrOperation)
	// A tombstone for a record would keep a free lock from everybody.
	return op == "DEL" || op == "PURGE" || h.Get("Nats-Marker-Reason") != "" //safety:tombstone
}

// readers is how many keys are read at a time where each needs a request.
const readers = 32

// readEach reads keys one by one, several at a time.
func (s *Store) readEach(ctx context.Context, keys []string, read func(context.Context, string) (Record, error)) ([]Record, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		records []Record
		failed  error
		slots   = make(chan struct{}, readers)
	)
	for _, k := range keys {
		slots <- struct{}{}
		wg.Go(func() {
			r, err := read(ctx, k)
			<-slots
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				records = append(records, r)
			case !errors.Is(err, ErrNotFound) && failed == nil:
				failed = err
				stop()
			}
		})
	}
	wg.Wait()
	return records, failed
}
