package kvstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/internal/plain"
)

const hdrUpTo = "Nats-UpTo-Sequence"

// ErrApart means that no single request can read several keys from one state, because this
// user's permissions or the bucket's settings do not allow it. It matches [ErrUnavailable].
var ErrApart = fmt.Errorf("%w: the keys cannot be read in one request", ErrUnavailable)

// errTooMany means that so many keys match that the server returns none of them.
var errTooMany = fmt.Errorf("%w: too many keys", errIncomplete)

// Current reports whether lists show every key as of min; see [KV].
func (s *reader) Current() bool {
	seen := s.seen.Load()
	return seen.alone || !seen.direct || s.multi()
}

// List returns the live records under pattern; see [KV].
//
// A single request reads at most 1024 keys, and only one if this user is not allowed to
// read several at once. Beyond that, List asks the leader for the keys and reads each of
// them. It misses no key, but a record may come from a later state than the others or, if a
// replica lags, from an earlier one.
func (s *reader) List(ctx context.Context, pattern string, min uint64, opts ...ListOption) (Listing, error) {
	what, err := parseOptions(pattern, opts)
	if err != nil {
		return Listing{}, err
	}
	var l Listing
	switch {
	case len(what.also) >= multiMax: // the request might not fit in a message
		err = errIncomplete
	case len(what.keys) > 0:
		l, err = s.listNamed(ctx, what.keys, min)
	case what.named && what.also == nil && !s.Alone():
		err = errIncomplete
	default:
		l, err = s.snapshot(ctx, pattern, min, what)
	}
	if errors.Is(err, errTooMany) && what.also == nil && !what.parts && (what.atMost > 0 || s.Alone()) {
		l, err = s.listPages(ctx, pattern, min, what)
	}
	switch {
	case !errors.Is(err, errIncomplete):
	case what.parts:
		var st State
		st, err = s.stateAt(ctx, pattern, min)
		l = Listing{Revision: st.LastRevision, Keys: st.Keys}
	case what.also != nil:
		err = fmt.Errorf("%w, with %d other patterns", ErrApart, len(what.also))
	default:
		if l, err = s.listSlowly(ctx, pattern, min, what); what.atMost > 0 && !l.More {
			l.Whole, what.from = true, 0
		}
	}
	switch {
	case errors.Is(err, ErrNotFound): // the bucket was deleted, which is not the same as an empty list
		return Listing{}, fmt.Errorf("list %q: %w: the bucket no longer exists: %v", pattern, ErrUnavailable, err)
	case err != nil:
		return Listing{}, fmt.Errorf("list %q: %w", pattern, err)
	}
	l.answer(what)
	return l, nil
}

// snapshot reads everything under pattern from a single state of one replica. The error
// matches errIncomplete if that is impossible.
func (s *reader) snapshot(ctx context.Context, pattern string, min uint64, what listing) (Listing, error) {
	subjects := []string{s.prefix + pattern}
	for _, p := range what.also {
		subjects = append(subjects, s.prefix+p)
	}
	if what.beside != "" {
		subjects = append(subjects, s.prefix+what.beside)
	}
	for try := 0; ; try++ {
		l, err := s.multiGet(ctx, subjects, what)
		if l.Revision > 0 && l.Revision < what.reached { // a single server never lags, so there must be others
			min = max(min, what.reached) //safety:lag-noticed
			s.crowded(s.seen.Load())
			s.doubtRefusal(doubtEvery)
		}
		// An older state may lack places that were taken since. A truncated list may come
		// from any state, because it shows only what exists and never proves that a key is
		// absent.
		if err != nil || l.More || l.Revision >= min { //safety:list-as-of
			return l, err
		}
		if l.Revision == 0 {
			return Listing{}, errIncomplete // nothing found, and the reply does not identify its state
		}
		if err := lagged(ctx, try, errIncomplete); err != nil {
			return Listing{}, err
		}
	}
}

// listPages reads a list that is too long for one request, in revision order: first the
// [Beside] record, then as many others as requested. A record written while List is reading
// comes after those already read, so it is not missed.
func (s *reader) listPages(ctx context.Context, pattern string, min uint64, what listing) (Listing, error) {
	var l Listing
	if what.beside != "" {
		var err error
		if l.Beside, err = s.Get(ctx, what.beside, min); err != nil && !errors.Is(err, ErrNotFound) {
			return Listing{}, err
		}
	}
	page, last := listing{from: max(what.from, 1), atMost: cmp.Or(what.atMost, batchMax), reached: what.reached}, make(map[string]Record)
	asOf := max(min, l.Beside.Revision)
	// Without a limit, this point is reached only for a single server (see List). Its state
	// contains everything that it has acknowledged, so there is no need to compare
	// revisions. Nor is there a way to, because a page identifies no state other than that
	// of its last record.
	if what.atMost == 0 {
		asOf = 0
	}
	for {
		part, err := s.snapshot(ctx, pattern, asOf, page)
		if err != nil {
			return Listing{}, err
		}
		for _, r := range part.Records {
			last[r.Key] = r
		}
		l.Revision = max(l.Revision, part.Revision)
		if !part.More || what.atMost > 0 {
			l.Records, l.More, l.Left = slices.Collect(maps.Values(last)), part.More, part.Left
			return l, nil
		}
		page.from = part.Revision + 1
	}
}

// listSlowly reads what a single request cannot read: first the [Beside] record, then the
// list.
func (s *reader) listSlowly(ctx context.Context, pattern string, min uint64, what listing) (Listing, error) {
	if what.beside == "" {
		return s.listKeys(ctx, pattern, min)
	}
	beside, err := s.Get(ctx, what.beside, min)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return Listing{}, err
	}
	if what.atMost > 0 && beside.Revision > 0 && !beside.Deleted {
		return Listing{Revision: beside.Revision, Beside: beside, More: true}, nil
	}
	l, err := s.listKeys(ctx, pattern, max(min, beside.Revision))
	l.Beside = beside
	return l, err
}

// listKeys asks the leader for the keys and reads them. It rereads those that a replica
// does not have yet.
func (s *reader) listKeys(ctx context.Context, pattern string, min uint64) (Listing, error) {
	st, err := s.stateAt(ctx, pattern, min)
	if err != nil {
		return Listing{}, err
	}
	l := Listing{Revision: st.LastRevision}
	missing := st.Keys
	for try := 0; ; try++ {
		records, _, err := s.readKeys(ctx, missing, min)
		if err != nil {
			return Listing{}, err
		}
		l.Records = append(l.Records, records...)
		missing = lacking(missing, records)
		// A key that the leader names but a replica lacks may be a waiter that the list
		// must not miss.
		if len(missing) == 0 { //safety:list-complete
			return l, nil
		}
		// Each missing record has either ended in the meantime or not reached this replica
		// yet. The leader knows which.
		if st, err = s.stateAt(ctx, pattern, min); err != nil {
			return Listing{}, err
		}
		missing = slices.DeleteFunc(missing, func(k string) bool {
			_, there := slices.BinarySearch(st.Keys, k)
			return !there
		})
		if len(missing) == 0 {
			return l, nil
		}
		lasting := fmt.Errorf("%w: %d keys listed by the leader cannot be read, among them %q", ErrUnavailable, len(missing), missing[0])
		if err := lagged(ctx, try, lasting); err != nil {
			return Listing{}, err
		}
	}
}

// listNamed reads keys that the leader has named, from a state that contains revision min.
func (s *reader) listNamed(ctx context.Context, keys []string, min uint64) (Listing, error) {
	records, latest, err := s.readKeys(ctx, keys, min)
	if err != nil {
		return Listing{}, err
	}
	l := Listing{Records: records, Revision: max(latest, min)}
	if len(records) == len(keys) || s.Alone() {
		return l, nil
	}
	// Each missing record has either ended in the meantime or not reached this replica yet.
	// The leader knows which.
	sure, err := s.readEach(ctx, lacking(keys, records), func(ctx context.Context, key string) (Record, error) { return s.Get(ctx, key, min) })
	l.Records = append(l.Records, sure...)
	return l, err
}

// lacking returns the keys for which there is no record.
func lacking(keys []string, records []Record) []string {
	found := make(map[string]bool, len(records))
	for _, r := range records {
		found[r.Key] = true
	}
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return found[k] })
}

// readKeys reads keys, in batches if multi-key reads are possible, and omits those that do
// not exist. latest is the revision of the latest state that was read.
func (s *reader) readKeys(ctx context.Context, keys []string, min uint64) (records []Record, latest uint64, err error) {
	for keys := range slices.Chunk(keys, multiMax) {
		subjects := make([]string, len(keys))
		for i, k := range keys {
			subjects[i] = s.prefix + k
		}
		l, err := s.multiGet(ctx, subjects, listing{})
		older := err == nil && l.Revision < min
		if errors.Is(err, errIncomplete) {
			l.Records, err = s.readAtOnce(ctx, keys)
		}
		if err == nil {
			l.Records, err = s.doubted(ctx, l.Records, min, older)
		}
		if err != nil {
			return nil, 0, err
		}
		records, latest = append(records, l.Records...), max(latest, l.Revision)
	}
	for _, r := range records { // needed if the keys were read one by one
		latest = max(latest, r.Revision)
	}
	return records, latest, nil
}

// doubted rereads from the leader the keys that a replica shows as deleted in a state that
// need not contain min, because they may have been written again since. If the state is
// known to be older than min, live records may also have ended, so doubted rereads those as
// well. If this user is not allowed to read from the leader, the replica's records will
// have to do.
func (s *reader) doubted(ctx context.Context, records []Record, min uint64, older bool) ([]Record, error) {
	if s.Alone() || !s.seen.Load().direct { //safety:deleted-as-of
		return records, nil
	}
	doubtful := func(r Record) bool { return (r.Deleted || older) && r.Revision < min } //safety:older-live
	var keys []string
	shown := make(map[string]Record)
	for _, r := range records {
		if doubtful(r) {
			keys, shown[r.Key] = append(keys, r.Key), r
		}
	}
	sure, err := s.readEach(ctx, keys, s.leaderGet)
	switch {
	case errors.Is(err, ErrPermission), errors.Is(err, nats.ErrNoResponders):
		return records, nil
	case err != nil:
		return nil, err
	}
	for i, r := range sure {
		if was := shown[r.Key]; r.Revision < was.Revision { //safety:older-leader
			sure[i] = was // a deposed leader replied
		}
	}
	return append(slices.DeleteFunc(records, doubtful), sure...), nil
}

// multiGet reads the last records on many subjects, including tombstones, from one replica.
// The replica sends a message for each record and then an end marker that identifies its
// state. The error matches errIncomplete if the replica cannot reply this way. Revision is
// 0 if the replica has no records.
func (s *reader) multiGet(ctx context.Context, subjects []string, what listing) (Listing, error) {
	if ctx.Err() != nil {
		return Listing{}, plain.EndOf(ctx)
	}
	if !s.multi() {
		return Listing{}, errIncomplete
	}
	request := pageRequest{Subjects: subjects, Seq: what.from, Batch: cmp.Or(what.atMost, batchMax), MaxBytes: multiBytes}
	if what.from > 0 && len(subjects) == 1 {
		// Each key has only one record, so reading by sequence returns the same records. A
		// request for last records also counts the records with lower sequences, and the
		// server rejects it if there are more than 1024.
		request.Subjects, request.Next = nil, subjects[0]
		if what.atMost == 1 { // without a batch, the server sends one record and does not count the others
			request.Batch, request.MaxBytes = 0, 0
		}
	}
	var l Listing // owned by the reply goroutine until it sends the end
	subject := s.apiPrefix + "DIRECT.GET." + s.name
	ch, forget, err := s.page(subject, request, func(m *nats.Msg) error {
		r, err := s.record(m.Header, m.Data)
		if err != nil {
			return errIncomplete
		}
		l.Records = append(l.Records, r)
		return nil
	})
	if err != nil {
		return Listing{}, err
	}
	defer forget()
	// A single server has no replica to reply in its place, and every retry slows it down
	// further. Give a waiter's reads more time, because the waiter repeats them anyway, but
	// not other reads, whose replies may have been lost.
	patient := s.Alone() && (what.atMost > 0 || len(what.also) > 0)
	within := repeatAfter
	if patient {
		within = 2 * replyTimeout
	}
	end, err := await(ctx, s.line, ch, subject, within)
	switch {
	case errors.Is(err, errNoAnswer) && ctx.Err() == nil && !patient:
		return Listing{}, errIncomplete // the leader may reply even though this replica did not
	case errors.Is(err, ErrPermission):
		// This request can read any key, so it may be denied to users who are allowed to
		// read single keys.
		s.multiOff.Store(true)
		return Listing{}, errIncomplete
	}
	if err := cmp.Or(err, end.err); err != nil {
		return Listing{}, err
	}
	n := len(l.Records)
	switch end.status {
	case "": // a single record
		l.Revision, l.More = l.Records[0].Revision, true
	case "204":
		// If records are pending, the reply was cut off at the requested limit or at
		// multiBytes.
		if pending := end.header.Get(hdrPending); pending != "0" { //safety:list-cut-off
			l.Left, _ = strconv.Atoi(pending)
			if l.More = what.atMost > 0 && n == what.atMost; !l.More {
				return Listing{}, errIncomplete
			}
		}
		// Servers before 2.11 omit this header, in which case Revision promises nothing.
		l.Revision, _ = strconv.ParseUint(end.header.Get(hdrUpTo), 10, 64)
		if n > 0 && request.Next != "" { // a reply to a request with Next has no hdrUpTo
			l.Revision = l.Records[n-1].Revision
		}
	case "404": // also sent if a record could not be loaded
		if n > 0 {
			return Listing{}, errIncomplete
		}
	case "413":
		return Listing{}, errTooMany
	case "503": // no server replied, because direct gets are disabled or not imported
		return Listing{}, errIncomplete
	default:
		return Listing{}, end.failed(subject)
	}
	return l, nil
}
