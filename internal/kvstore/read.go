package kvstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// reader reads records from the replicas of the stream, or from its leader.
type reader struct {
	*stream
	multiOff  atomic.Bool // this user may not use the multi-key read
	leaderOff atomic.Bool // this user may not read from the leader
}

// multi reports whether one request can read several keys, as far as the store
// knows.
func (s *reader) multi() bool { return s.seen.Load().direct && !s.imported && !s.multiOff.Load() }

// Get returns the record under key; see [KV].
func (s *reader) Get(ctx context.Context, key string, min uint64) (Record, error) {
	if err := checkKey(key); err != nil {
		return Record{}, err
	}
	r, err := s.read(ctx, key)
	// A lagging replica may show a record that the caller knows has ended.
	if min > 0 && (errors.Is(err, ErrNotFound) || err == nil && r.Revision < min) { //safety:read-as-of
		r, err = s.readAsOf(ctx, key, min)
	}
	if err != nil {
		return Record{}, fmt.Errorf("read %q: %w", key, err)
	}
	return r, nil
}

// read reads a key from any replica, if the bucket allows that.
func (s *reader) read(ctx context.Context, key string) (Record, error) {
	if !s.seen.Load().direct {
		r, err := s.leaderGet(ctx, key)
		return r, undirected(err)
	}
	r, err := s.directGet(ctx, key)
	switch {
	case errors.Is(err, errUnreadable):
		return s.leaderGet(ctx, key) // the leader's answer has the position outside the record's headers
	case errors.Is(err, nats.ErrNoResponders):
		// An account that imports the bucket may not import direct gets, or an
		// administrator has turned them off.
		l, refused := s.leaderGet(ctx, key)
		if refused == nil || errors.Is(refused, ErrNotFound) || errors.Is(refused, ErrPermission) {
			s.doubtRefusal(doubtEvery)
			return l, undirected(refused)
		}
	}
	return r, err
}

// undirected wraps the error of a read from the leader that no replica can answer
// instead. A refusal is not a reason to give up, because an administrator can
// repair the setting.
func undirected(err error) error {
	if errors.Is(err, ErrPermission) {
		return fmt.Errorf("%w: %w: no server answers direct gets, as when allow_direct is off (\"lockctl init\" repairs it), and the leader refuses: %v", ErrUnavailable, ErrWithheld, err)
	}
	return err
}

// readAsOf reads a key again after a read whose state may be older than revision
// min: it found nothing, or a lower revision. The result stands if a leader that
// has applied min confirms it.
func (s *reader) readAsOf(ctx context.Context, key string, min uint64) (Record, error) {
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
			// The record has ended since, or a deposed leader that lacks min
			// answered: only a state that contains min proves that there is
			// nothing.
			if err := lagged(ctx, try, fmt.Errorf("%w: the leader names the key %q and has no record of it", ErrUnavailable, key)); err != nil {
				return Record{}, err
			}
			continue
		}
		if !withheld(err) || !s.seen.Load().direct {
			return r, undirected(err)
		}
		// The leader's read shows any key, so it may be withheld, or not imported,
		// where reading single keys is granted. A replica that is not behind will
		// do, and a single server is never behind.
		r, direct := s.directGet(ctx, key)
		if direct == nil && r.Revision >= min || errors.Is(direct, ErrPermission) || s.Alone() {
			return r, direct
		}
		lasting := fmt.Errorf("%w: %w: no replica shows what is known to be there at revision %d, and \"lockctl perms\" prints what lets the leader be asked: %v",
			ErrUnavailable, ErrWithheld, min, err)
		if err := lagged(ctx, try, lasting); err != nil {
			return Record{}, err
		}
	}
}

// withheld reports whether err is that of a request which this user may not make,
// or which its account does not import.
func withheld(err error) bool {
	return errors.Is(err, ErrPermission) || errors.Is(err, nats.ErrNoResponders)
}

// directGet reads from any replica. This form of the request, with the key in the
// subject, can be granted per prefix.
func (s *reader) directGet(ctx context.Context, key string) (Record, error) {
	m, err := s.roundTrip(ctx, s.directSubject(key), nil, own)
	if err != nil {
		return Record{}, err
	}
	return s.direct(key, m)
}

func (s *reader) directSubject(key string) string {
	return s.apiPrefix + "DIRECT.GET." + s.name + "." + s.prefix + key
}

// direct parses the answer to a direct get of key.
func (s *reader) direct(key string, m *nats.Msg) (Record, error) {
	switch status := statusOf(m); status {
	case "":
		r, err := s.record(m.Header, m.Data)
		if err != nil {
			return Record{}, err
		}
		return r.of(key)
	case "404":
		return Record{}, ErrNotFound
	default:
		return Record{}, fmt.Errorf("%w: status %s %s", ErrUnavailable, status, m.Header.Get(hdrDescription))
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

// leaderGet reads from the stream's leader. The request can read any key, so it
// may be withheld where reading single keys is granted. A refusal is not an
// answer, and takes time to notice, so the store asks only once.
func (s *reader) leaderGet(ctx context.Context, key string) (Record, error) {
	if s.leaderOff.Load() {
		return Record{}, fmt.Errorf("%w: the server has refused this user to read from the stream's leader", ErrPermission)
	}
	body, _ := json.Marshal(map[string]string{"last_by_subj": s.prefix + key})
	var resp msgGetResponse
	if err := s.api(ctx, "STREAM.MSG.GET."+s.name, body, &resp, own); err != nil {
		if errors.Is(err, ErrPermission) {
			s.leaderOff.Store(true)
		}
		return Record{}, err
	}
	m := resp.Message
	// A header that cannot be parsed shows neither TTL nor deletion: to be safe,
	// the record counts as one that stays.
	h, _ := nats.DecodeHeadersMsg(m.Header)
	return Record{
		Key: strings.TrimPrefix(m.Subject, s.prefix), Value: m.Data, Revision: m.Seq, Time: m.Time,
		TTL: parseTTL(h.Get(hdrTTL)), Deleted: isTombstone(h),
	}.of(key)
}

// readers is the number of keys read concurrently if each needs a request of its
// own.
const readers = 32

// readEach reads keys one by one, several concurrently.
func (s *reader) readEach(ctx context.Context, keys []string, read func(context.Context, string) (Record, error)) ([]Record, error) {
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

// readAtOnce reads each key with a request of its own, and sends all requests
// before it waits for an answer. Contenders without the multi-key read have many
// keys to read, mostly tombstones of the last second. A key without a usable
// answer is read a second time.
func (s *reader) readAtOnce(ctx context.Context, keys []string) ([]Record, error) {
	if len(keys) == 0 || !s.seen.Load().direct {
		return s.readEach(ctx, keys, s.read)
	}
	type answer struct {
		i   int
		r   Record
		err error
	}
	ch := make(chan answer, len(keys))
	for i, k := range keys {
		forget, err := s.sendRequest(s.directSubject(k), nil, own, func(m *nats.Msg, err error) bool {
			var r Record
			if err == nil {
				r, err = s.direct(k, m)
			}
			ch <- answer{i, r, err}
			return false
		})
		if err != nil {
			return nil, err
		}
		defer forget()
	}
	var records []Record
	left := slices.Clone(keys)
	last := len(left) - 1
	for range keys {
		for last > 0 && left[last] == "" { // of several refusals the connection reports that of the last request
			last--
		}
		a, err := await(ctx, s.line, ch, s.directSubject(keys[last]), repeatAfter)
		if errors.Is(err, errNoAnswer) {
			break
		}
		if err != nil {
			return nil, err
		}
		if a.err == nil {
			records = append(records, a.r)
		}
		if a.err == nil || errors.Is(a.err, ErrNotFound) {
			left[a.i] = ""
		}
	}
	more, err := s.readEach(ctx, slices.DeleteFunc(left, func(k string) bool { return k == "" }), s.read)
	return append(records, more...), err
}
