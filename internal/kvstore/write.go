package kvstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/plain"
)

const (
	hdrExpect        = "Nats-Expected-Last-Subject-Sequence"
	hdrExpectSubject = "Nats-Expected-Last-Subject-Sequence-Subject"
)

// writer writes records and interprets the stream's replies.
type writer struct {
	*stream
	acknowledged func(sentWrite)        // called for every acknowledged write
	ackHead      atomic.Pointer[[]byte] // the part of an acknowledgment before the sequence
}

func newWriter(s *stream, acknowledged func(sentWrite)) *writer {
	w := &writer{stream: s, acknowledged: acknowledged}
	s.onWritten = w.written
	return w
}

// Send publishes a conditional write; see [KV].
func (s *writer) Send(w Write, done func(Answer)) (forget func(), err error) {
	ttl, err := w.check()
	if err != nil {
		return nil, err
	}
	return s.exchange(s.message(w, ttl), awaited{write: s.sending(s.now(), w.Key, w.Expect), written: done})
}

// written handles the reply to a write, or the reason that none will arrive.
func (s *writer) written(to awaited, m *nats.Msg, failure error) {
	a := Answer{Err: failure}
	if failure == nil {
		a = s.answer(to.write, m)
		s.answered(to.write, a)
		if a.Err == nil {
			s.checkRoom(a.Revision)
			s.acknowledged(to.write)
		}
	}
	if to.written != nil {
		to.written(a)
	}
}

// message is the only place that assembles the headers of a write, because the server
// silently accepts a guard with a misspelled subject.
func (s *writer) message(w Write, ttl string) *outgoing {
	o := s.outgoing(s.putPrefix, w.Key, w.Expect)
	o.msg.Data, o.route, o.ends = w.Value, own, w.Delete
	h, values := o.msg.Header, o.values[:0]
	set := func(name, value string) {
		values = append(values, value)
		h[name] = values[len(values)-1 : len(values) : len(values)]
	}
	// Only a compare-and-set can grant a lock, so every write names the revision that it
	// replaces.
	set(hdrExpect, o.expect) //safety:conditional
	// The TTL makes the server free a lock whose holder has died.
	set(hdrTTL, ttl) //safety:record-ends
	if w.Guard != "" {
		// Use the subject as the stream stores it, even behind an API prefix. Under any
		// other subject the server finds no record, and the guard proves nothing.
		set(hdrExpectSubject, s.prefix+w.Guard) //safety:guard
	}
	if w.Delete {
		set(hdrOperation, "DEL")
	}
	return o
}

// Server error codes that nats.go does not define.
const (
	errCodeMsgTooLarge = 10054 // "message size exceeds maximum allowed"
	errCodeNoRoom      = 10077 // "maximum bytes exceeded", and other storage failures
)

// headerRoom is the most space that the headers of a write can take, not counting the
// guard's.
const headerRoom = 160

// MaxValue returns the maximum size of a value in bytes, as far as the store knows; see
// [KV].
func (s *writer) MaxValue() int {
	return min(MaxRecord, int(s.maxPayload.Load())-headerRoom)
}

// maxDigits limits the length of a sequence, so that parsing one cannot overflow.
const maxDigits = 18

type pubAck struct {
	Error     *jetstream.APIError `json:"error"`
	Stream    string              `json:"stream"`
	Sequence  uint64              `json:"seq"`
	Duplicate bool                `json:"duplicate"`
}

// answer interprets the server's reply to w.
func (s *writer) answer(w sentWrite, m *nats.Msg) Answer {
	if err := unanswerable(m); err != nil {
		return Answer{Err: fmt.Errorf("write to %q: %w", w.key, err)}
	}
	if noResponders(m) {
		return Answer{Err: fmt.Errorf("%w: %w to %q: the bucket has been deleted, has no leader, or %s", ErrUnavailable, ErrNoStream, w.key, s.elsewhere())}
	}
	if revision, ok := s.plainAck(m.Data); ok {
		return Answer{Revision: revision}
	}
	var ack pubAck
	if err := json.Unmarshal(m.Data, &ack); err != nil {
		return Answer{Err: fmt.Errorf("%w: unreadable answer to a write to %q: %w", ErrUnavailable, w.key, err)}
	}
	switch e := ack.Error; {
	// Only this stream can acknowledge the write, and only with a new sequence.
	case e == nil && ack.Stream == s.name && ack.Sequence > 0 && !ack.Duplicate: //safety:acknowledged
		s.learnAck(m.Data, ack.Sequence)
		return Answer{Revision: ack.Sequence}
	case e == nil:
		return Answer{Err: fmt.Errorf("%w: write to %q was answered by stream %q, sequence %d, duplicate %v", ErrUnavailable, w.key, ack.Stream, ack.Sequence, ack.Duplicate)}
	case e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence:
		// A conflict that names no sequence does not imply that the key is empty.
		if last, ok := lastSequence(e.Description); ok { //safety:conflict-named
			return Answer{Err: &ConflictError{Key: w.key, Expected: w.expect, Last: last}}
		}
		return Answer{Err: fmt.Errorf("%w: write to %q: conflict without a sequence: %w", ErrUnavailable, w.key, e)}
	// Another write to the key is being replicated. That does not mean that the lock is
	// held.
	case e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant: //safety:in-flight
		return Answer{Err: fmt.Errorf("write to %q: %w: %w", w.key, ErrInFlight, e)}
	case e.ErrorCode == errCodeMsgTooLarge:
		s.doubtRefusal(doubtEvery) // the bucket's limit may have changed
		return Answer{Err: fmt.Errorf("write to %q: %w: %w", w.key, ErrTooLarge, e)}
	case e.ErrorCode == errCodeNoRoom:
		// Once clients know that the bucket is full, they take no new locks and leave the
		// room to renewals.
		s.doubtRefusal(doubtFullEvery)
		if !strings.HasPrefix(e.Description, "maximum") { // the server's storage has failed
			return Answer{Err: fmt.Errorf("%w: write to %q: %w", ErrUnavailable, w.key, e)}
		}
		return Answer{Err: fmt.Errorf("%w: write to %q: %w: %w", ErrUnavailable, w.key, ErrFull, e)}
	default: // the settings may forbid the write
		s.doubtRefusal(doubtEvery)
		return Answer{Err: fmt.Errorf("%w: write to %q: %w", ErrUnavailable, w.key, e)}
	}
}

// plainAck parses an acknowledgment that differs from the last decoded one only in its
// sequence. Decoding the JSON takes ten times as long.
func (s *writer) plainAck(data []byte) (uint64, bool) {
	known := s.ackHead.Load()
	if known == nil {
		return 0, false
	}
	digits, ok := bytes.CutPrefix(data, *known)
	if !ok {
		return 0, false
	}
	if digits, ok = bytes.CutSuffix(digits, []byte("}")); !ok || len(digits) == 0 || len(digits) > maxDigits || digits[0] == '0' {
		return 0, false
	}
	var n uint64
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, false
		}
		n = 10*n + uint64(d-'0')
	}
	return n, true
}

// learnAck remembers the part of a decoded acknowledgment before its sequence, if the
// sequence comes last.
func (s *writer) learnAck(data []byte, sequence uint64) {
	if head, ok := bytes.CutSuffix(data, []byte(`"seq":`+strconv.FormatUint(sequence, 10)+"}")); ok {
		head = append(bytes.Clone(head), `"seq":`...)
		s.ackHead.Store(&head)
	}
}

// lastSequence parses N from "wrong last sequence: N". The server reports N only in the
// error text.
func lastSequence(description string) (uint64, bool) {
	i := strings.LastIndexByte(description, ' ')
	n, err := strconv.ParseUint(description[i+1:], 10, 64)
	return n, err == nil
}

// write sends w and waits for the reply.
func (s *writer) write(ctx context.Context, w Write) (uint64, error) {
	if ctx.Err() != nil {
		return 0, plain.EndOf(ctx)
	}
	w.Value = bytes.Clone(w.Value) // it may be sent after write has returned
	ch := make(chan Answer, 1)
	subject := s.putPrefix + w.Key
	forget, err := s.Send(w, func(a Answer) { ch <- a })
	if err != nil {
		return 0, err
	}
	defer forget()
	a, err := await(ctx, s.line, ch, subject, replyTimeout)
	if err != nil {
		if errors.Is(err, ErrPermission) {
			s.refused(w.Key)
		}
		return 0, err
	}
	return a.Revision, a.Err
}

// Create writes a record under a key that has neither a record nor a tombstone. The server
// deletes the record after ttl, which is rounded up to whole seconds. ttl must be positive
// and at most 366 days, and the value at most [MaxRecord] bytes long.
//
// Create returns the record's revision, or an error. Nothing was written if the error
// matches [ErrExists] (a *[ConflictError], because the key has a record), [ErrInFlight],
// [ErrNoStream] or, before any I/O, [ErrInvalidKey], [ErrInvalidTTL] or [ErrTooLarge].
//
// After any other error the outcome may be unknown. Such an error matches [ErrUnavailable]
// if ctx ended or no reply arrived within 5 s, [ErrClosed] if the store is closed, and
// [ErrPermission] if the server denies this user the write or its reply.
func (s *writer) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (uint64, error) {
	return s.write(ctx, Write{Key: key, Value: value, TTL: ttl})
}

// CreateGuarded is like Create but requires the literal key guard to have revision expect,
// or not to exist if expect is 0. Otherwise the error matches [ErrConflict]. CreateGuarded
// does not check the revision of key itself, so key should be new.
func (s *writer) CreateGuarded(ctx context.Context, key string, value []byte, ttl time.Duration, guard string, expect uint64) (uint64, error) {
	if err := checkKey(guard); err != nil {
		return 0, err
	}
	return s.write(ctx, Write{Key: key, Value: value, TTL: ttl, Guard: guard, Expect: expect})
}

// Update replaces the record at revision and returns the new revision. The TTL starts over.
// Errors are those of [Store.Create], with [ErrConflict] in place of [ErrExists] if the key
// has a different revision.
func (s *writer) Update(ctx context.Context, key string, value []byte, ttl time.Duration, revision uint64) (uint64, error) {
	return s.write(ctx, Write{Key: key, Value: value, TTL: ttl, Expect: revision})
}

// Delete replaces the record at revision with a tombstone and returns the tombstone's
// revision. The server deletes the tombstone after a second. Errors are those of
// [Store.Update].
func (s *writer) Delete(ctx context.Context, key string, revision uint64) (uint64, error) {
	return s.write(ctx, Write{Key: key, Delete: true, Expect: revision})
}
