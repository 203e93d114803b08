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
	// DefaultHistoryBytes is the default size limit of a history, enough for about a
	// million lock writes.
	DefaultHistoryBytes = 256 << 20
	// metaHistoryFrom names the metadata entry that records the bucket's last revision when
	// its history was created.
	metaHistoryFrom = "natslock.history.from"
	// historyPage is the number of writes that one request reads.
	historyPage = 4096
	// historyLag limits the wait for the most recent writes, which the server copies into
	// the history only after acknowledging them. historyPoll is the interval between
	// checks.
	historyLag  = 2 * time.Second
	historyPoll = 20 * time.Millisecond
)

// ErrNoHistory means that the bucket has no history; see [HistoryStream].
var ErrNoHistory = errors.New("bucket has no history")

// HistoryStream returns the configuration of a stream that keeps a bucket's history. The
// history keeps each write for age, but never more than maxBytes in total; a maxBytes of 0
// means [DefaultHistoryBytes]. bucket describes the bucket's stream, whose storage,
// replicas and placement the history shares. The history is named "HISTORY_" followed by
// the bucket's name. HistoryStream does no I/O.
//
// A stream cannot capture what the bucket republishes, so the history sources the bucket
// instead. The records' TTLs have no effect in the history. A record that is replaced
// before the server has copied it is missing from the history, and [History.Read] counts it
// as missed.
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

// Historian is implemented by a [KV] whose bucket may have a history, such as a [Store].
type Historian interface {
	// History opens the history; see [Store.History].
	History(ctx context.Context) (*History, error)
}

// History is a bucket's history at the time it was opened.
type History struct {
	// Begin is when the history begins. Like every time in a History, it comes from the
	// server's clock.
	Begin time.Time
	// Now is when the history was opened.
	Now time.Time
	// Last is the revision of the last write in the history, or 0 if there is none. The
	// bucket's last revision is never lower than Last, unless the bucket was restored from
	// a backup or re-created with a lower sequence.
	Last uint64
	// Behind is the number of writes in the bucket that the history does not have yet.
	Behind uint64

	historyPages
	last point // the last write
	base point // just before the first write, if known
}

// History opens the bucket's history. It waits briefly for the history to catch up with the
// bucket.
//
// The error matches [ErrNoHistory] if there is none, [ErrNotFound] if the bucket was
// deleted, and otherwise [ErrUnavailable], [ErrPermission], [ErrClosed] or ctx's error.
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

// refresh reads the history's state and its last write.
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
	case err == nil && !bucket.Created.After(info.Created): // the metadata refers to this bucket
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
	if emptied { // all of its writes have aged out
		return nil
	}
	// A re-created bucket starts at a higher revision.
	known := max(h.last.revision, max(bucket.Config.FirstSeq, 1)-1)
	h.Behind = max(bucket.State.LastSeq, known) - known
	return nil
}

// HistoryRecord is a write in a history. If the last writes are missing, a HistoryRecord
// without a key stands in for them.
type HistoryRecord struct {
	// Record is the record that was written. Its Time is when it was copied into the
	// history, just after the write.
	Record
	// Missed is the number of writes missing between the previous record and this one.
	// Their keys need not match any of the patterns. After is the previous record's time.
	Missed uint64
	After  time.Time
	// Remade reports whether the bucket was deleted and re-created between the two records.
	// If so, the number of missing writes is unknown and Missed is 0.
	Remade bool
}

// Read yields, in order, the writes since the given time to keys that match one of the
// patterns. If since is zero, it starts with the first write. The patterns must not
// overlap. The sequence ends after the last write that the history had when it was opened,
// or with an error. The error matches [ErrInvalidKey], [ErrUnavailable], [ErrPermission],
// [ErrClosed] or ctx's error.
//
// On a cluster, any replica of the history may serve the read, and a lagging one may lack
// the most recent writes.
func (h *History) Read(ctx context.Context, patterns []string, since time.Time) iter.Seq2[HistoryRecord, error] {
	return func(yield func(HistoryRecord, error) bool) {
		previous, err := h.start(ctx, since)
		if err == nil && previous == (point{}) {
			return // nothing has been written since then
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

// Missing counts the writes between the history's first write since the given time and its
// last write. It returns how many of them the history lacks and how many there are in
// total, not counting those in [History.Behind].
//
// The error matches [ErrRemade] if the bucket was re-created between those writes, and
// otherwise [ErrUnavailable], [ErrPermission], [ErrClosed] or ctx's error.
func (h *History) Missing(ctx context.Context, since time.Time) (missing, all uint64, err error) {
	first, err := h.start(ctx, since)
	gap := h.last.behind(first)
	switch {
	case err == nil && first == (point{}): // nothing has been written since then
		return 0, 0, nil
	case err == nil && gap.Remade:
		err = ErrRemade
	}
	if err != nil {
		return 0, 0, fmt.Errorf("history of bucket %q: %w", h.s.cfg.Bucket, err)
	}
	return gap.Missed, h.last.revision - first.revision, nil
}

// behind describes the gap between previous and p.
func (p point) behind(previous point) HistoryRecord {
	r := HistoryRecord{After: previous.at}
	switch apart, kept := p.revision-previous.revision, p.seq-previous.seq; {
	case p.bucket != "" && previous.bucket != "" && p.bucket != previous.bucket || p.revision < previous.revision:
		r.Remade = true
	case apart > kept: // both the bucket and the history number writes consecutively
		r.Missed = apart - kept
	}
	return r
}

// start returns the point from which to measure the first gap, or point{} if nothing has
// been written since the given time.
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

// follow yields the writes to keys that match pattern. It requests the next page before it
// yields the current one.
func (h *History) follow(ctx context.Context, pattern string, since time.Time) iter.Seq2[historyEntry, error] {
	return func(yield func(historyEntry, error) bool) {
		req := pageRequest{Next: h.s.prefix + pattern, Batch: historyPage, MaxBytes: multiBytes}.since(since)
		for next := h.ask(req); next != nil; {
			page, more, err := next.await(ctx)
			if errors.Is(err, errIncomplete) && req.Batch > 0 {
				req.Batch = 0 // fall back to one record at a time
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

// merged yields the entries of all patterns in order.
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
			first := slices.MinFunc(heads, func(a, b *head) int { return cmp.Compare(a.seq, b.seq) }) // an error has seq 0, so it comes first
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
