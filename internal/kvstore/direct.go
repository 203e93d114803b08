package kvstore

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"
)

// directGet reads from any replica. The subject form of the request can be
// granted per prefix.
func (s *Store) directGet(ctx context.Context, key string) (Record, error) {
	m, err := s.roundTrip(ctx, s.directSubject(key), nil, own)
	if err != nil {
		return Record{}, err
	}
	return s.direct(key, m)
}

func (s *Store) directSubject(key string) string {
	return s.apiPrefix + "DIRECT.GET." + s.stream + "." + s.prefix + key
}

// direct reads the answer to a direct get of key.
func (s *Store) direct(key string, m *nats.Msg) (Record, error) {
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

// readAtOnce reads each key with a request of its own, and sends all requests before it
// awaits an answer. Contenders without the multi-key read have many keys to read,
// mostly tombstones of the last second. A key without a usable answer is read once
// more.
func (s *Store) readAtOnce(ctx context.Context, keys []string) ([]Record, error) {
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
		for last > 0 && left[last] == "" { // of several refusals the connection shows that of the last request
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
