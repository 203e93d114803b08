package kvstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	hdrStream    = "Nats-Stream"
	hdrSubject   = "Nats-Subject"
	hdrTimeStamp = "Nats-Time-Stamp"
	hdrTTL       = "Nats-TTL"
	hdrOperation = "KV-Operation"
	hdrPending   = "Nats-Num-Pending"
	// hdrDescription is nats.go's name for the text that follows a status.
	hdrDescription = "Description"
)

// errUnreadable means that the server's own headers are not where they should be, because the
// writer's headers are malformed or the server's are those of another stream.
var errUnreadable = errors.New("unreadable record")

// record parses a message that the server delivered with its position in the headers. The key
// comes from those headers, because an import may rename the subject.
func (s *stream) record(h nats.Header, data []byte) (Record, error) {
	last := func(name string) string { return lastOf(h, name) }
	// A mirror may still show holders that are long gone, because it keeps records that the
	// bucket has deleted.
	if name := last(hdrStream); name != "" && name != s.name { //safety:mirror
		s.mirrored(name)
		return Record{}, fmt.Errorf("%w: it comes from stream %.64q", errUnreadable, name)
	}
	seq, err := strconv.ParseUint(last(hdrSequence), 10, 64)
	if err != nil {
		return Record{}, fmt.Errorf("%w: sequence: %w", errUnreadable, err)
	}
	key, ok := strings.CutPrefix(last(hdrSubject), s.prefix)
	if !ok {
		return Record{}, fmt.Errorf("%w: subject %.64q is not in bucket %q", errUnreadable, last(hdrSubject), s.cfg.Bucket)
	}
	at, err := time.Parse(time.RFC3339Nano, last(hdrTimeStamp))
	if err != nil {
		return Record{}, fmt.Errorf("%w: time: %w", errUnreadable, err)
	}
	return Record{Key: key, Value: data, Revision: seq, Time: at, TTL: parseTTL(h.Get(hdrTTL)), Deleted: isTombstone(h)}, nil
}

// lastOf returns a header's last value. The server appends its own headers to those of the
// record's writer, who may have used the same names.
func lastOf(h nats.Header, name string) string {
	if v := h[name]; len(v) > 0 {
		return v[len(v)-1]
	}
	return ""
}

func isTombstone(h nats.Header) bool {
	op := h.Get(hdrOperation)
	// Treating a tombstone as a record would deny a free lock to every client.
	return op == "DEL" || op == "PURGE" || h.Get("Nats-Marker-Reason") != "" //safety:tombstone
}

// of returns r if it is a record of key. A reply about anything else says nothing about the key,
// least of all that it has no record.
func (r Record) of(key string) (Record, error) {
	if r.Key != key || r.Revision == 0 { //safety:answer-of-key
		return Record{}, fmt.Errorf("%w: requested %q, but the reply is about %.64q at revision %d", ErrUnavailable, key, r.Key, r.Revision)
	}
	return r, nil
}

// mirrored warns once that a mirror answers reads. After a reply from a mirror, the store asks
// the leader, because a mirror may keep records that the bucket has deleted.
func (s *stream) mirrored(name string) {
	if s.mirrorSeen.Swap(true) {
		return
	}
	s.cfg.Logger.Warn(fmt.Sprintf("lock bucket: stream %.64q mirrors this bucket and answers some of its reads, which then have to be repeated. Repair: remove the mirror or its mirror_direct", name),
		"bucket", s.cfg.Bucket)
}

// pageRequest is the part of the server's JSApiMsgGetRequest that this package uses. It requests
// the last records of several subjects, or the records of one subject starting at a sequence or
// a time. Without a batch it requests a single record.
type pageRequest struct {
	Subjects []string   `json:"multi_last,omitempty"`
	Next     string     `json:"next_by_subj,omitempty"`
	Seq      uint64     `json:"seq,omitempty"`
	Start    *time.Time `json:"start_time,omitempty"`
	Batch    int        `json:"batch,omitempty"`
	MaxBytes int        `json:"max_bytes,omitempty"`
}

// pageEnd ends the replies to a pageRequest. It is a status message, the single record
// requested, or an error.
type pageEnd struct {
	status string
	header nats.Header
	err    error
}

// page requests records from a stream on its direct-get subject. It calls take for each record
// on the reply goroutine, before it sends the end. For a batch, the error matches errIncomplete
// if a request can get only one reply, which is the case behind an import and while the
// connection is draining.
func (s *stream) page(subject string, req pageRequest, take func(*nats.Msg) error) (end <-chan pageEnd, forget func(), err error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, nil, err
	}
	route := own
	switch {
	case req.Batch > 0 && s.imported:
		return nil, nil, errIncomplete
	case req.Batch > 0:
		route = whole
	}
	ch := make(chan pageEnd, 1)
	forget, err = s.sendRequest(subject, body, route, func(m *nats.Msg, failure error) bool {
		e := pageEnd{err: failure}
		if failure == nil {
			e.status, e.header = statusOf(m), m.Header
			if e.status == "" {
				e.err = take(m)
			}
			if e.status == "" && e.err == nil && req.Batch > 0 {
				return true
			}
		}
		ch <- e
		return false
	})
	return ch, forget, err
}

// failed returns an error for a status that does not end a page normally.
func (e pageEnd) failed(subject string) error {
	return fmt.Errorf("%w: status %s %s on %s", ErrUnavailable, e.status, e.header.Get(hdrDescription), subject)
}
