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

// reader reads records from the stream's replicas or from its leader.
type reader struct {
	*stream
	multiOff  atomic.Bool // multi-key reads are denied to this user
	leaderOff atomic.Bool // reads from the leader are denied to this user
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
	// A lagging replica may return a record that the caller knows has ended.
	if min > 0 && (errors.Is(err, ErrNotFound) || err == nil && r.Revision < min) { //safety:read-as-of
		r, err = s.readAsOf(ctx, key, min)
	}
	if err != nil {
		return Record{}, fmt.Errorf("read %q: %w", key, err)
	}
	return r, nil
}

// read reads a key from any replica, or from the leader if the bucket disallows direct
// gets.
func (s *reader) read(ctx context.Context, key string) (Record, error) {
	if !s.seen.Load().direct {
		r, err := s.leaderGet(ctx, key)
		return r, undirected(err)
	}
	r, err := s.directGet(ctx, key)
	switch {
	case errors.Is(err, errUnreadable):
		return s.leaderGet(ctx, key) // the leader's reply has the position outside the record's headers
	case errors.Is(err, nats.ErrNoResponders):
		// An account that imports the bucket might not import direct gets, or an
		// administrator may have turned them off.
		l, refused := s.leaderGet(ctx, key)
		if refused == nil || errors.Is(refused, ErrNotFound) || errors.Is(refused, ErrPermission) {
			s.doubtRefusal(doubtEvery)
			return l, undirected(refused)
		}
	}
	return r, err
}

// undirected makes the error of a read that the leader may not serve for this user match
// [ErrWithheld] instead of [ErrPermission] when no replica can serve the read either. The
// caller should not give up, because an administrator can turn allow_direct back on.
func undirected(err error) error {
	if errors.Is(err, ErrPermission) {
		return fmt.Errorf("%w: %w: no server answers direct gets, perhaps because allow_direct is off (\"lockctl init\" repairs that), and this user may not ask the leader: %v", ErrUnavailable, ErrWithheld, err)
	}
	return err
}

// readAsOf rereads a key after a read whose state may be older than revision min, because
// it found nothing or a lower revision. The result stands only if a leader that has applied
// min confirms it.
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
			// Either the record has ended since, or a deposed leader that lacks min has
			// replied. Only a state that contains min proves that there is no record.
			if err := lagged(ctx, try, fmt.Errorf("%w: the leader lists key %q but has no record of it", ErrUnavailable, key)); err != nil {
				return Record{}, err
			}
			continue
		}
		if !withheld(err) || !s.seen.Load().direct {
			return r, undirected(err)
		}
		// A read from the leader can return any key, so it may be withheld, or not
		// imported, even if reading single keys is allowed. A replica that has caught up
		// will do instead, and a single server is never behind.
		r, direct := s.directGet(ctx, key)
		if direct == nil && r.Revision >= min || errors.Is(direct, ErrPermission) || s.Alone() {
			return r, direct
		}
		lasting := fmt.Errorf("%w: %w: no replica has revision %d yet, and this user may not ask the leader; \"lockctl perms\" prints the missing permission: %v",
			ErrUnavailable, ErrWithheld, min, err)
		if err := lagged(ctx, try, lasting); err != nil {
			return Record{}, err
		}
	}
}

// withheld reports whether err means that this user is not allowed to make the request, or
// that its account does not import it.
func withheld(err error) bool {
	return errors.Is(err, ErrPermission) || errors.Is(err, nats.ErrNoResponders)
}

// directGet reads from any replica. The request has the key in its subject, so it can be
// permitted per prefix.
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

// direct parses the reply to a direct get of key.
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

// leaderGet reads from the stream leader. The request can read any key, so it may be denied
// even if reading single keys is allowed. The server does not reply to a denied request,
// and the denial takes time to notice, so the store does not ask again after the first
// denial.
func (s *reader) leaderGet(ctx context.Context, key string) (Record, error) {
	if s.leaderOff.Load() {
		return Record{}, fmt.Errorf("%w: the server does not let this user read from the stream's leader", ErrPermission)
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
	// A header that cannot be parsed shows neither a TTL nor a deletion, so play it safe
	// and treat the record as permanent.
	h, _ := nats.DecodeHeadersMsg(m.Header)
	return Record{
		Key: strings.TrimPrefix(m.Subject, s.prefix), Value: m.Data, Revision: m.Seq, Time: m.Time,
		TTL: parseTTL(h.Get(hdrTTL)), Deleted: isTombstone(h),
	}.of(key)
}

// readers is the number of keys to read concurrently if each needs its own request.
const readers = 32

// readEach reads keys individually, several at a time.
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

// readAtOnce reads each key with its own request, sending all the requests before it waits
// for a reply. Contenders without multi-key reads have many keys to read, most of them
// tombstones from the last second. A key without a usable reply is read again.
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
		for last > 0 && left[last] == "" { // of several denials, the connection reports only the one for the last request
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
