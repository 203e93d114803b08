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

// ErrApart says that this user, or this bucket, allows no request that reads several keys in one state. It matches
// [ErrUnavailable].
var ErrApart = fmt.Errorf("%w: not in one request", ErrUnavailable)

// errTooMany: the server reads the last records of so many keys not even in part.
var errTooMany = fmt.Errorf("%w: too many keys", errIncomplete)

// Current reports whether lists contain what they have to; see [KV].
func (s *reader) Current() bool {
	seen := s.seen.Load()
	return seen.alone || !seen.direct || s.multi()
}

// List returns the live records under pattern; see [KV].
//
// One request cannot read more than 1024 keys, or any for a user that may only read
// single keys. Then the leader names the keys, and List reads each. It misses no key, but
// a record can be of a later state than the others, or of an older one if a replica lags.
func (s *reader) List(ctx context.Context, pattern string, min uint64, opts ...ListOption) (Listing, error) {
	what, err := parseOptions(pattern, opts)
	if err != nil {
		return Listing{}, err
	}
	var l Listing
	switch {
	case len(what.also) >= multiMax: // such a request might not fit into a message
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
		err = fmt.Errorf("%w: and %d other patterns", ErrApart, len(what.also))
	default:
		if l, err = s.listSlowly(ctx, pattern, min, what); what.atMost > 0 && !l.More {
			l.Whole, what.from = true, 0
		}
	}
	switch {
	case errors.Is(err, ErrNotFound): // there is no bucket, which is no empty list
		return Listing{}, fmt.Errorf("list %q: %w: the bucket is gone: %v", pattern, ErrUnavailable, err)
	case err != nil:
		return Listing{}, fmt.Errorf("list %q: %w", pattern, err)
	}
	l.answer(what)
	return l, nil
}

// snapshot reads everything under pattern from one state of one replica; the
// error matches errIncomplete when that is not possible.
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
		if l.Revision > 0 && l.Revision < what.reached { // the only server does not lag: there are others
			min = max(min, what.reached) //safety:lag-noticed
			s.crowded(s.seen.Load())
			s.doubtRefusal(doubtEvery)
		}
		// An older state need not contain the places that were taken since. A list that was cut off shows what
		// there is, and proves nothing to be missing.
		if err != nil || l.More || l.Revision >= min { //safety:list-as-of
			return l, err
		}
		if l.Revision == 0 {
			return Listing{}, errIncomplete // nothing there, in a state that is not named
		}
		if err := lagged(ctx, try, errIncomplete); err != nil {
			return Listing{}, err
		}
	}
}

// listPages reads a list that is too long for one request, in the order of the revisions: first the record beside it, and
// then as much as is wanted. A record that is written meanwhile gets behind what was read, so it is not missed.
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
	if what.atMost == 0 { // of one server, whose states contain what it has acknowledged: a page names no state but its last record
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

// listSlowly reads what one request cannot: the record beside, then the list.
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

// listKeys asks the leader for the keys and reads them, again where a replica
// does not know one yet.
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
		// A key that the leader names and a replica lacks is a waiter, not a gap.
		if len(missing) == 0 { //safety:list-complete
			return l, nil
		}
		// They have ended since, or this replica lags: the leader knows.
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
		lasting := fmt.Errorf("%w: %d keys that the leader names cannot be read, %q is one", ErrUnavailable, len(missing), missing[0])
		if err := lagged(ctx, try, lasting); err != nil {
			return Listing{}, err
		}
	}
}

// listNamed reads keys that the leader has named, as of a state that contains revision min.
func (s *reader) listNamed(ctx context.Context, keys []string, min uint64) (Listing, error) {
	records, latest, err := s.readKeys(ctx, keys, min)
	if err != nil {
		return Listing{}, err
	}
	l := Listing{Records: records, Revision: max(latest, min)}
	if len(records) == len(keys) || s.Alone() {
		return l, nil
	}
	// They have ended since, or this replica lacks them: the leader knows.
	sure, err := s.readEach(ctx, lacking(keys, records), func(ctx context.Context, key string) (Record, error) { return s.Get(ctx, key, min) })
	l.Records = append(l.Records, sure...)
	return l, err
}

// lacking returns the keys that have none of the records.
func lacking(keys []string, records []Record) []string {
	found := make(map[string]bool, len(records))
	for _, r := range records {
		found[r.Key] = true
	}
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return found[k] })
}

// readKeys reads keys, in portions where the multi-key read is possible. A key
// that is not there is left out. latest is the latest revision of a state that was read.
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
	for _, r := range records { // where each was read by itself
		latest = max(latest, r.Revision)
	}
	return records, latest, nil
}

// doubted reads again, from the leader, what a replica shows as deleted in a state that
// need not contain min: it may have been written again since. In a state that is known to
// be older, a live record may have ended since, too. Where the leader's read is withheld,
// what the replica has answered has to do.
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
			sure[i] = was // a deposed leader has answered
		}
	}
	return append(slices.DeleteFunc(records, doubtful), sure...), nil
}

// multiGet reads the last records of many subjects, tombstones included, from
// one replica, which answers with one message each and an end mark that names
// its state. The error matches errIncomplete when it cannot answer like that.
// Revision is 0 when it has nothing.
func (s *reader) multiGet(ctx context.Context, subjects []string, what listing) (Listing, error) {
	if ctx.Err() != nil {
		return Listing{}, plain.EndOf(ctx)
	}
	if !s.multi() {
		return Listing{}, errIncomplete
	}
	request := pageRequest{Subjects: subjects, Seq: what.from, Batch: cmp.Or(what.atMost, batchMax), MaxBytes: multiBytes}
	if what.from > 0 && len(subjects) == 1 {
		// A key has one record. Asked for the last ones, the server counts those before
		// the revision too, and refuses more than 1024.
		request.Subjects, request.Next = nil, subjects[0]
		if what.atMost == 1 { // answered by the record alone: the server does not count the others
			request.Batch, request.MaxBytes = 0, 0
		}
	}
	var l Listing // the replies' goroutine's until it sends the end
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
	// Who else should answer for the only server? One that is late has more to do by each other request. What a waiter
	// reads it reads again; for all else an answer may be lost.
	patient := s.Alone() && (what.atMost > 0 || len(what.also) > 0)
	within := repeatAfter
	if patient {
		within = 2 * replyTimeout
	}
	end, err := await(ctx, s.line, ch, subject, within)
	switch {
	case errors.Is(err, errNoAnswer) && ctx.Err() == nil && !patient:
		return Listing{}, errIncomplete // the leader may answer where this replica did not
	case errors.Is(err, ErrPermission):
		// This request reads any key, so it may be withheld where reading
		// single keys is granted.
		s.multiOff.Store(true)
		return Listing{}, errIncomplete
	}
	if err := cmp.Or(err, end.err); err != nil {
		return Listing{}, err
	}
	n := len(l.Records)
	switch end.status {
	case "": // the record alone
		l.Revision, l.More = l.Records[0].Revision, true
	case "204":
		// Cut off, at the limit of the request or at multiBytes.
		if pending := end.header.Get(hdrPending); pending != "0" { //safety:list-cut-off
			l.Left, _ = strconv.Atoi(pending)
			if l.More = what.atMost > 0 && n == what.atMost; !l.More {
				return Listing{}, errIncomplete
			}
		}
		// Servers before 2.11 do not say; nothing is promised then.
		l.Revision, _ = strconv.ParseUint(end.header.Get(hdrUpTo), 10, 64)
		if n > 0 && request.Next != "" { // which has no such header
			l.Revision = l.Records[n-1].Revision
		}
	case "404": // also when a record could not be loaded
		if n > 0 {
			return Listing{}, errIncomplete
		}
	case "413":
		return Listing{}, errTooMany
	case "503": // nobody answers: direct gets are off, or not imported
		return Listing{}, errIncomplete
	default:
		return Listing{}, end.failed(subject)
	}
	return l, nil
}
