package kvstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/plain"
)

const (
	// DefaultHistoryBytes is the size of a history when none is given: about a million
	// lock writes.
	DefaultHistoryBytes = 256 << 20
	// metaHistoryFrom is the last revision of the bucket when its history was created.
	metaHistoryFrom = "natslock.history.from"
	// historyPage is the number of writes that one request reads.
	historyPage = 4096
	// historyLag limits the wait for the last writes: the server copies them into the
	// history after it has acknowledged them. historyPoll is the time between two checks.
	historyLag  = 2 * time.Second
	historyPoll = 20 * time.Millisecond
)

// ErrNoHistory: the bucket has no history; see [HistoryStream].
var ErrNoHistory = errors.New("bucket has no history")

// HistoryStream returns the stream that keeps the history of a bucket: each write for the
// duration age, and never more than maxBytes. 0 bytes means [DefaultHistoryBytes]. bucket
// is the bucket's stream, whose storage, replicas and placement the history shares. The
// name of the history is "HISTORY_" and the bucket's name. HistoryStream does no I/O.
//
// A stream cannot capture what the bucket republishes, so the history sources the bucket.
// The TTLs of the records have no effect there. A record that is replaced before the
// server has copied it is missing, and [History.Read] counts it.
func HistoryStream(bucket *jetstream.StreamInfo, age time.Duration, maxBytes int64) jetstream.StreamConfig {
	c := bucket.Config
	sc := jetstream.StreamConfig{
		Name:        historyName(strings.TrimPrefix(c.Name, streamName(""))),
		Description: "history of " + c.Name,
		Sources:     []*jetstream.StreamSource{{Name: c.Name, OptStartSeq: bucket.State.LastSeq + 1}},
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		MaxAge:      age,
		MaxBytes:    cmp.Or(maxBytes, DefaultHistoryBytes),
		MaxMsgs:     -1, MaxMsgsPerSubject: -1, MaxMsgSize: -1, MaxConsumers: -1,
		Storage:     c.Storage,
		Replicas:    c.Replicas,
		Placement:   c.Placement,
		DenyDelete:  true,
		DenyPurge:   true,
		AllowDirect: true,
		Metadata:    map[string]string{metaHistoryFrom: strconv.FormatUint(bucket.State.LastSeq, 10)},
	}
	if c.Storage == jetstream.FileStorage {
		sc.Compression = jetstream.S2Compression
	}
	return sc
}

func historyName(bucket string) string { return "HISTORY_" + bucket }

// Historian is a [KV] whose bucket may have a history, such as a [Store].
type Historian interface {
	// History opens the history; see [Store.History].
	History(ctx context.Context) (*History, error)
}

// History is the content of a bucket's history when it was opened.
type History struct {
	// Begin is the start of the history. This and all other times here are the server's.
	Begin time.Time
	// Now is the time at which the history was opened.
	Now time.Time
	// Last is the revision of the last write in the history, or 0. The bucket never has a
	// lower one, unless it was restored from a backup or re-created with a lower
	// sequence.
	Last uint64
	// Behind is the number of writes in the bucket that the history does not have yet.
	Behind uint64

	historyPages
	last point // of the last write
	base point // before the first write, if known
}

// History opens the history of the bucket. It waits briefly for the history to catch up
// with the bucket.
//
// The error matches [ErrNoHistory] if there is none, and otherwise [ErrUnavailable],
// [ErrPermission], [ErrNotFound] if the bucket was deleted, [ErrClosed] or ctx's error.
func (s *stream) History(ctx context.Context) (*History, error) {
	bucket, err := s.info(ctx, infoRequest{})
	if err != nil {
		return nil, fmt.Errorf("history of bucket %q: %w", s.cfg.Bucket, err)
	}
	h := &History{historyPages: historyPages{s, historyName(s.cfg.Bucket)}}
	for {
		if err := h.refresh(ctx, bucket); err != nil {
			return nil, fmt.Errorf("history of bucket %q: %w", s.cfg.Bucket, err)
		}
		if h.Behind == 0 || h.Now.Sub(bucket.TimeStamp) > historyLag {
			return h, nil
		}
		if err := pause(ctx, historyPoll); err != nil {
			return nil, err
		}
	}
}

// refresh reads the state of the history and its last write.
func (h *History) refresh(ctx context.Context, bucket *infoResponse) error {
	var info infoResponse
	err := h.s.infoOf(ctx, "STREAM.INFO."+h.stream, nil, &info, own)
	switch {
	case errors.Is(err, ErrNotFound):
		return fmt.Errorf("%w: there is no stream %s", ErrNoHistory, h.stream)
	case err != nil:
		return err
	}
	h.Begin, h.Now, h.base = info.Created, info.TimeStamp, point{}
	emptied := info.State.Msgs == 0 && info.State.LastSeq > 0
	from, err := strconv.ParseUint(info.Config.Metadata[metaHistoryFrom], 10, 64)
	switch {
	case emptied:
		h.Begin = info.State.LastTime
	case info.State.FirstSeq > 1:
		h.Begin = info.State.FirstTime
	case err == nil && !bucket.Created.After(info.Created): // the revision is this bucket's
		h.base = point{revision: from, at: info.Created}
	}
	h.last, h.Last, h.Behind = h.base, 0, 0
	if info.State.Msgs > 0 {
		page, _, err := h.page(ctx, pageRequest{Seq: info.State.LastSeq})
		if err != nil {
			return err
		}
		if len(page) > 0 {
			h.last, h.Last = page[0].point, page[0].point.revision
		}
	}
	if emptied { // all its writes were too old
		return nil
	}
	// A bucket that was re-created begins with a higher number.
	known := max(h.last.revision, max(bucket.Config.FirstSeq, 1)-1)
	h.Behind = max(bucket.State.LastSeq, known) - known
	return nil
}

// HistoryRecord is a write in a history.
type HistoryRecord struct {
	// Record is the record written. Its Time is that of the copy in the history, just
	// after the write. A record without a key follows the last write if writes are
	// missing after it.
	Record
	// Missed is the number of writes missing between the previous record and this one.
	// Their keys may match none of the patterns. After is the time of that previous
	// record.
	Missed uint64
	After  time.Time
	// Remade reports that the bucket was deleted and re-created between them. Missed is 0
	// then, because the number is unknown.
	Remade bool
}

// Read yields the writes from since on to keys that match one of the patterns, in order.
// A zero since means from the first one. The patterns must not overlap. The sequence ends
// after the last write that the history had when it was opened, or with an error. The
// error matches [ErrInvalidKey], [ErrUnavailable], [ErrPermission], [ErrClosed] or ctx's
// error.
//
// On a cluster a replica of the history answers. A lagging replica may lack the last
// writes.
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

// Missing counts the writes since a time, from the first one in the history to the last.
// It returns how many of them the history lacks, and how many there are in all, not
// counting those in [History.Behind].
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

// behind returns what lies between previous and p.
func (p point) behind(previous point) HistoryRecord {
	r := HistoryRecord{After: previous.at}
	switch apart, kept := p.revision-previous.revision, p.seq-previous.seq; {
	case p.bucket != "" && previous.bucket != "" && p.bucket != previous.bucket || p.revision < previous.revision:
		r.Remade = true
	case apart > kept: // the bucket and the history each number writes consecutively
		r.Missed = apart - kept
	}
	return r
}

// start returns the position from which the first gap is counted, or the zero position if
// nothing was written since.
func (h *History) start(ctx context.Context, since time.Time) (point, error) {
	if h.last.seq == 0 {
		return point{}, nil
	}
	page, _, err := h.page(ctx, pageRequest{Next: h.s.prefix + ">"}.since(since))
	if err != nil || len(page) == 0 {
		return point{}, err
	}
	if p := page[0].point; p.seq > 1 || h.base == (point{}) {
		return p, nil
	}
	return h.base, nil
}

// follow yields the writes to keys under a pattern. It requests the next page before it
// yields the current one.
func (h *History) follow(ctx context.Context, pattern string, since time.Time) iter.Seq2[historyEntry, error] {
	return func(yield func(historyEntry, error) bool) {
		req := pageRequest{Next: h.s.prefix + pattern, Batch: historyPage, MaxBytes: multiBytes}.since(since)
		for next := h.ask(req); next != nil; {
			page, more, err := next.await(ctx)
			if errors.Is(err, errIncomplete) && req.Batch > 0 {
				req.Batch = 0 // one record at a time
				next = h.ask(req)
				continue
			}
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

// merged yields the entries of several patterns in order.
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
			first := slices.MinFunc(heads, func(a, b *head) int { return cmp.Compare(a.seq, b.seq) }) // an error has seq 0
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
