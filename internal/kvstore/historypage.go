package kvstore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const hdrSource = "Nats-Stream-Source"

// historyPages are the pages of the stream that keeps the history of another one.
type historyPages struct {
	s      *stream
	stream string
}

// point is the position of a write in a history and in the bucket.
type point struct {
	seq, revision uint64
	at            time.Time
	bucket        string // names one bucket among those of the same name, unless it is empty
}

// historyEntry is a message of a history.
type historyEntry struct {
	point
	record Record
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

// historyAnswer is an answer to come. Its page is that of the replies' goroutine until that
// sends on done.
type historyAnswer struct {
	h       historyPages
	subject string
	page    []historyEntry
	more    bool
	done    chan error
	drop    func() // nil if nothing was sent
}

// page reads messages. More says that there may be others behind them.
func (h historyPages) page(ctx context.Context, req historyRequest) (page []historyEntry, more bool, err error) {
	return h.ask(req).await(ctx)
}

// ask sends a request.
func (h historyPages) ask(req historyRequest) *historyAnswer {
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
func (h historyPages) entry(m *nats.Msg) (historyEntry, error) {
	unreadable := func(what string, err error) (historyEntry, error) {
		return historyEntry{}, fmt.Errorf("%w: message %.20q of %s: %s: %w", ErrUnavailable, lastOf(m.Header, hdrSequence), h.stream, what, err)
	}
	// The source is "KV_natslock 42 > > $KV.natslock.lock.deploy xTANiqXU": the stream, the
	// sequence there, the filter and its transformation, and the subject. A recent server
	// adds an id that differs when the stream is re-created.
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
