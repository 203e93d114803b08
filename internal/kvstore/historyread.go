package kvstore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/internal/plain"
)

// point is the position of a write in a history and in the bucket.
type point struct {
	seq, revision uint64
	at            time.Time
	bucket        string // names one bucket among those of the same name, unless it is empty
}

// HistoryRecord is a write that a history has kept.
type HistoryRecord struct {
	// Record is what was written. Its Time is that of the copy in the history, a
	// moment after the write. After the last write there is a record without a key if
	// writes are missing behind it.
	Record
	// Missed is the number of writes that are missing between the previous record and
	// this one. They may be of keys that match no pattern. After is the time of that
	// previous record.
	Missed uint64
	After  time.Time
	// Remade says that the bucket was deleted and re-created between them. Then
	// Missed is 0, and nobody knows how many are missing.
	Remade bool
}

// Read yields the writes to keys that match one of the patterns, in their order, from since
// on. The zero time is that of the first one. The patterns must not overlap. The sequence
// ends with the writes that the history had when it was opened, or with an error. It
// matches [ErrInvalidKey], [ErrUnavailable], [ErrPermission], [ErrClosed] or ctx's error.
//
// On a cluster the answers come from a replica of the history. One that lags may lack the
// last writes.
func (h *History) Read(ctx context.Context, patterns []string, since time.Time) iter.Seq2[HistoryRecord, error] {
	return func(yield func(HistoryRecord, error) bool) {
		previous, err := h.start(ctx, since)
		if err == nil && previous == (point{}) {
			return // nothing since
		}
		for _, p := range patterns {
			err = plain.Join(err, checkPattern(p))
		}
		if err != nil {
			yield(HistoryRecord{}, fmt.Errorf("history of bucket %q: %w", h.s.cfg.Bucket, err))
			return
		}
		for e, err := range merged(patterns, func(pattern string) iter.Seq2[historyEntry, error] { return h.follow(ctx, pattern, since) }) {
			if err != nil {
				yield(HistoryRecord{}, fmt.Errorf("history of bucket %q: %w", h.s.cfg.Bucket, err))
				return
			}
			r := e.point.behind(previous)
			r.Record = e.record
			if !yield(r, nil) {
				return
			}
			previous = e.point
		}
		if r := h.last.behind(previous); r.Missed > 0 || r.Remade {
			r.Time = h.last.at
			yield(r, nil)
		}
	}
}

// Missing counts the writes since a time: from the first one in the history to the last one in
// it. It returns how many of them the history lacks, and how many there are. It does not count
// those of [History.Behind].
//
// The error matches [ErrRemade] if the bucket was re-created in between. Otherwise it matches
// [ErrUnavailable], [ErrPermission], [ErrClosed] or ctx's error.
func (h *History) Missing(ctx context.Context, since time.Time) (missing, all uint64, err error) {
	first, err := h.start(ctx, since)
	gap := h.last.behind(first)
	switch {
	case err == nil && first == (point{}): // nothing since
		return 0, 0, nil
	case err == nil && gap.Remade:
		err = ErrRemade
	}
	if err != nil {
		return 0, 0, fmt.Errorf("history of bucket %q: %w", h.s.cfg.Bucket, err)
	}
	return gap.Missed, h.last.revision - first.revision, nil
}

// behind returns what lies between two positions.
func (p point) behind(previous point) HistoryRecord {
	r := HistoryRecord{After: previous.at}
	switch apart, kept := p.revision-previous.revision, p.seq-previous.seq; {
	case p.bucket != "" && previous.bucket != "" && p.bucket != previous.bucket || p.revision < previous.revision:
		r.Remade = true
	case apart > kept: // each write has the next number, in the bucket and in the history
		r.Missed = apart - kept
	}
	return r
}

// start returns the position that the first gap is counted from, or the zero position if
// nothing was written since.
func (h *History) start(ctx context.Context, since time.Time) (point, error) {
	if h.last.seq == 0 {
		return point{}, nil
	}
	page, _, err := h.page(ctx, historyRequest{Next: h.s.prefix + ">"}.since(since))
	if err != nil || len(page) == 0 {
		return point{}, err
	}
	if p := page[0].point; p.seq > 1 || h.base == (point{}) {
		return p, nil
	}
	return h.base, nil
}

// follow yields what was written under a pattern. It asks for the next page before it yields
// one.
func (h *History) follow(ctx context.Context, pattern string, since time.Time) iter.Seq2[historyEntry, error] {
	return func(yield func(historyEntry, error) bool) {
		req := historyRequest{Next: h.s.prefix + pattern, Batch: historyPage, MaxBytes: multiBytes}.since(since)
		if h.s.imported {
			req.Batch = 0
		}
		for next := h.ask(req); next != nil; {
			page, more, err := next.await(ctx)
			if next = nil; more && len(page) > 0 {
				req.Start, req.Seq = nil, page[len(page)-1].seq+1
				next = h.ask(req)
			}
			for _, e := range page {
				if e.seq > h.last.seq || !yield(e, nil) {
					next.forget()
					return
				}
			}
			if err != nil {
				yield(historyEntry{}, err)
				return
			}
		}
	}
}

// historyEntry is a message of a history.
type historyEntry struct {
	point
	record Record
}

// merged yields the entries of several patterns in their order.
func merged(patterns []string, follow func(string) iter.Seq2[historyEntry, error]) iter.Seq2[historyEntry, error] {
	type head struct {
		historyEntry
		err  error
		next func() (historyEntry, error, bool)
	}
	return func(yield func(historyEntry, error) bool) {
		var heads []*head
		for _, p := range patterns {
			next, stop := iter.Pull2(follow(p))
			defer stop()
			if e, err, more := next(); more {
				heads = append(heads, &head{e, err, next})
			}
		}
		for len(heads) > 0 {
			first := slices.MinFunc(heads, func(a, b *head) int { return cmp.Compare(a.seq, b.seq) }) // an error has 0
			if !yield(first.historyEntry, first.err) || first.err != nil {
				return
			}
			var more bool
			if first.historyEntry, first.err, more = first.next(); !more {
				heads = slices.DeleteFunc(heads, func(h *head) bool { return h == first })
			}
		}
	}
}

// historyRequest is the server's JSApiMsgGetRequest, of it what a history needs: one
// message, or a number of them from a sequence or a time on.
type historyRequest struct {
	Next     string     `json:"next_by_subj,omitempty"`
	Seq      uint64     `json:"seq,omitempty"`
	Start    *time.Time `json:"start_time,omitempty"`
	Batch    int        `json:"batch,omitempty"`
	MaxBytes int        `json:"max_bytes,omitempty"`
}

func (r historyRequest) since(t time.Time) historyRequest {
	if t.IsZero() {
		r.Seq = 1
	} else {
		r.Start = &t
	}
	return r
}

// page reads messages. More says that there may be others behind them.
func (h *History) page(ctx context.Context, req historyRequest) (page []historyEntry, more bool, err error) {
	return h.ask(req).await(ctx)
}

// historyAnswer is an answer to come. Its page is that of the replies' goroutine until that
// sends on done.
type historyAnswer struct {
	h       *History
	subject string
	page    []historyEntry
	more    bool
	done    chan error
	drop    func() // nil if nothing was sent
}

// ask sends a request.
func (h *History) ask(req historyRequest) *historyAnswer {
	a := &historyAnswer{h: h, subject: h.s.apiPrefix + "DIRECT.GET." + h.stream, done: make(chan error, 1)}
	finish := func(err error) bool { a.done <- err; return false }
	body, err := json.Marshal(req)
	if err == nil {
		a.drop, err = h.s.sendRequest(a.subject, body, own, func(m *nats.Msg, failure error) bool {
			if failure != nil {
				return finish(failure)
			}
			switch status := statusOf(m); status {
			case "":
				e, err := h.entry(m)
				if err != nil {
					return finish(err)
				}
				if a.page = append(a.page, e); req.Batch == 0 {
					a.more = true
					return finish(nil)
				}
				return true
			case "204":
				a.more = m.Header.Get(hdrPending) != "0"
				return finish(nil)
			case "404":
				return finish(nil)
			default:
				return finish(fmt.Errorf("%w: status %s %s on %s", ErrUnavailable, status, m.Header.Get(hdrDescription), a.subject))
			}
		})
	}
	if err != nil {
		finish(err)
	}
	return a
}

// await waits for the answer.
func (a *historyAnswer) await(ctx context.Context) (page []historyEntry, more bool, err error) {
	defer a.forget()
	failed, err := await(ctx, a.h.s.line, a.done, a.subject, replyTimeout)
	if err := cmp.Or(err, failed); err != nil {
		return nil, false, err
	}
	return a.page, a.more, nil
}

// forget drops the answer.
func (a *historyAnswer) forget() {
	if a != nil && a.drop != nil {
		a.drop()
	}
}

// entry reads a message of the history.
func (h *History) entry(m *nats.Msg) (historyEntry, error) {
	unreadable := func(what string, err error) (historyEntry, error) {
		return historyEntry{}, fmt.Errorf("%w: message %.20q of %s: %s: %w", ErrUnavailable, lastOf(m.Header, hdrSequence), h.stream, what, err)
	}
	// The source is "KV_natslock 42 > > $KV.natslock.lock.deploy xTANiqXU": the stream, the
	// sequence there, the filter and its transformation, and the subject. A recent server
	// adds an id that differs when the stream is re-created.
	source := strings.Fields(lastOf(m.Header, hdrSource))
	key, ok := strings.CutPrefix(lastOf(m.Header, hdrSubject), h.s.prefix)
	if !ok || len(source) < 5 || source[0] != h.s.stream {
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
