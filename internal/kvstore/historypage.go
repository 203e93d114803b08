package kvstore

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const hdrSource = "Nats-Stream-Source"

// historyPages reads a history stream page by page.
type historyPages struct {
	s      *stream
	stream string
}

// point is a write's position in a history and in the bucket.
type point struct {
	seq, revision uint64
	at            time.Time
	bucket        string // distinguishes buckets of the same name; may be empty
}

// historyEntry is a message in a history.
type historyEntry struct {
	point
	record Record
}

// since makes a request start at time t, or at the first record if t is zero.
func (r pageRequest) since(t time.Time) pageRequest {
	if t.IsZero() {
		r.Seq = 1
	} else {
		r.Start = &t
	}
	return r
}

// historyAnswer is a pending reply. The reply goroutine owns page until it sends the end.
type historyAnswer struct {
	h       historyPages
	subject string
	page    []historyEntry
	end     <-chan pageEnd
	drop    func() // nil if nothing was sent
	err     error  // why nothing was sent
}

// page reads a page of entries. more reports whether another page may follow.
func (h historyPages) page(ctx context.Context, req pageRequest) (page []historyEntry, more bool, err error) {
	return h.ask(req).await(ctx)
}

// ask sends a request without waiting for the reply.
func (h historyPages) ask(req pageRequest) *historyAnswer {
	a := &historyAnswer{h: h, subject: h.s.apiPrefix + "DIRECT.GET." + h.stream}
	a.end, a.drop, a.err = h.s.page(a.subject, req, func(m *nats.Msg) error {
		e, err := h.entry(m)
		a.page = append(a.page, e)
		return err
	})
	return a
}

func (a *historyAnswer) await(ctx context.Context) (page []historyEntry, more bool, err error) {
	if a.err != nil {
		return nil, false, a.err
	}
	defer a.drop()
	end, err := await(ctx, a.h.s.line, a.end, a.subject, replyTimeout)
	if err := cmp.Or(err, end.err); err != nil {
		return nil, false, err
	}
	switch end.status {
	case "", "404": // a single record, or none
		return a.page, end.status == "", nil
	case "204":
		return a.page, end.header.Get(hdrPending) != "0", nil
	}
	return nil, false, end.failed(a.subject)
}

func (a *historyAnswer) forget() {
	if a != nil && a.drop != nil {
		a.drop()
	}
}

// entry parses a message from the history.
func (h historyPages) entry(m *nats.Msg) (historyEntry, error) {
	unreadable := func(what string, err error) (historyEntry, error) {
		return historyEntry{}, fmt.Errorf("%w: message %.20q of %s: %s: %w", ErrUnavailable, lastOf(m.Header, hdrSequence), h.stream, what, err)
	}
	// The source header looks like "KV_natslock 42 > > $KV.natslock.lock.deploy xTANiqXU":
	// the stream, the sequence in that stream, the filter, its transform, and the subject.
	// Recent servers append an ID that changes when the stream is re-created.
	source := strings.Fields(lastOf(m.Header, hdrSource))
	key, ok := strings.CutPrefix(lastOf(m.Header, hdrSubject), h.s.prefix)
	if !ok || len(source) < 5 || source[0] != h.s.name {
		return unreadable("its source", errUnreadable)
	}
	var e historyEntry
	var err error
	if e.revision, err = strconv.ParseUint(source[1], 10, 64); err != nil {
		return unreadable("its revision", err)
	}
	if e.seq, err = strconv.ParseUint(lastOf(m.Header, hdrSequence), 10, 64); err != nil {
		return unreadable("its sequence", err)
	}
	if e.at, err = time.Parse(time.RFC3339Nano, lastOf(m.Header, hdrTimeStamp)); err != nil {
		return unreadable("its time", err)
	}
	if len(source) > 5 {
		e.bucket = source[5]
	}
	e.record = Record{Key: key, Value: m.Data, Revision: e.revision, Time: e.at, TTL: parseTTL(m.Header.Get(hdrTTL)), Deleted: isTombstone(m.Header)}
	return e, nil
}
