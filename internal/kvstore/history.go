package kvstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// DefaultHistoryBytes is the size of a history when none is given: about a million
	// writes of locks.
	DefaultHistoryBytes = 256 << 20
	// metaHistoryFrom is the last revision of the bucket when its history was made.
	metaHistoryFrom = "natslock.history.from"
	hdrSource       = "Nats-Stream-Source"
	hdrPending      = "Nats-Num-Pending"
	// historyPage is how many writes one request reads.
	historyPage = 4096
	// historyLag bounds the wait for the last writes: the server copies them into the
	// history after it has acknowledged them. historyPoll is the time between two checks.
	historyLag  = 2 * time.Second
	historyPoll = 20 * time.Millisecond
)

// ErrNoHistory: the bucket has no history; see [HistoryStream].
var ErrNoHistory = errors.New("bucket has no history")

// HistoryStream returns the stream that keeps the history of a bucket: each write for a
// time of age, and never more than maxBytes. 0 bytes are [DefaultHistoryBytes]. bucket is the
// bucket's stream, whose storage, replicas and placement the history has too. Its name is
// that of the bucket behind "HISTORY_". It does no I/O.
//
// A stream cannot capture what the bucket re-publishes, so the history sources the bucket.
// The TTLs of the records have no effect there. A record that another write replaces
// before the server has copied it is missing, and [History.Read] counts it.
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

// Historian is a [KV] whose bucket may have a history, as that of a [Store].
type Historian interface {
	// History opens the history; see [Store.History].
	History(ctx context.Context) (*History, error)
}

var _ Historian = (*Store)(nil)

// History is what a bucket's history had kept when it was opened.
type History struct {
	// Begin is the time that the history reaches back to. By the server's clock, as all
	// times here.
	Begin time.Time
	// Now is the time of the opening.
	Now time.Time
	// Last is the revision of the last write that it has, or 0. A bucket never has a lower one,
	// unless it was restored from a backup or re-created with a lower sequence.
	Last uint64
	// Behind is the number of writes that the bucket has and the history has not yet.
	Behind uint64

	s      *Store
	stream string
	last   point // of the last write
	base   point // before the first write, if known
}

// History opens the history of the bucket. It waits for a moment until the history has
// what the bucket has now.
//
// The error matches [ErrNoHistory] if there is none, and otherwise [ErrUnavailable],
// [ErrPermission], [ErrNotFound] for a bucket that is gone, [ErrClosed] or ctx's error.
func (s *Store) History(ctx context.Context) (*History, error) {
	bucket, err := s.info(ctx, infoRequest{})
	if err != nil {
		return nil, fmt.Errorf("history of bucket %q: %w", s.cfg.Bucket, err)
	}
	h := &History{s: s, stream: historyName(s.cfg.Bucket)}
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
	case err == nil && !bucket.Created.After(info.Created): // the numbers are those of this bucket
		h.base = point{revision: from, at: info.Created}
	}
	h.last, h.Last, h.Behind = h.base, 0, 0
	if info.State.Msgs > 0 {
		page, _, err := h.page(ctx, historyRequest{Seq: info.State.LastSeq})
		if err != nil {
			return err
		}
		if len(page) > 0 {
			h.last, h.Last = page[0].point, page[0].point.revision
		}
	}
	if emptied { // all of it was too old
		return nil
	}
	// A bucket that was re-created begins with a higher number.
	known := max(h.last.revision, max(bucket.Config.FirstSeq, 1)-1)
	h.Behind = max(bucket.State.LastSeq, known) - known
	return nil
}
