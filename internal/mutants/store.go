package main

const (
	writeGo   = "kvstore/write.go"
	healthGo  = "kvstore/health.go"
	readGo    = "kvstore/read.go"
	listGo    = "kvstore/list.go"
	keyGo     = "kvstore/key.go"
	nameGo    = "internal/lease/key.go"
	requestGo = "kvstore/request.go"
	watchGo   = "kvstore/watch.go"
)

// storeMutants weaken the store: what is asked of the server, and what is made of
// its answers.
var storeMutants = []mutant{
	{"health-silence", "writes that go unanswered endanger nothing", "Answers",
		healthGo, one(`now-w.at >= silentAfter`, `now-w.at >= silentUntil*60`),
		"kvstore.TestHealthyUnanswered"},
	{"health-given-up", "a write whose caller has given up counts for answered", "Answers",
		requestGo, one(`if !s.orphan(id) {`, `if id > 0 {`),
		"kvstore.TestHealthyUnanswered"},
	{"health-refusal-stores", "a refusal proves that writes are stored", "Answers",
		healthGo, one(`case a.Err == nil:`, `case !errors.Is(a.Err, ErrUnavailable):`),
		"kvstore.TestHealthyRefusals"},
	{"health-answer-unheard", "a write whose caller has given up counts for unanswered when it was answered", "Answers",
		healthGo, one(`		s.answered(w, s.answer(Write{Key: w.key}, m))
		return false`, `		return true`),
		"kvstore.TestHealthyUnanswered"},
	{"health-denied", "a forbidden write counts for unanswered", "Answers",
		healthGo, one(`if s.Denied(w.key) == nil {`, `if s.Denied("") == nil {`),
		"kvstore.TestHealthyDenied"},
	{"write-unconditional", "no write is conditional", "Only a compare-and-set grants",
		writeGo, one(`	set(hdrExpect, strconv.FormatUint(w.Expect, 10))
`, `	_ = strconv.FormatUint
`),
		"kvstore.TestConditionalWrites"},
	{"write-delete-unconditional", "a deletion is unconditional", "A live record is never overwritten",
		writeGo, one(`	if w.Delete {
		set(hdrOperation, "DEL")`, `	if w.Delete {
		delete(h, hdrExpect)
		set(hdrOperation, "DEL")`),
		"natslock.TestFaultAtEveryStep/A_lock_delete_1-1/applied_3s_later"},
	{"write-create-unconditional", "a write that expects nothing is unconditional", "Only a compare-and-set grants",
		writeGo, one(`	if w.Delete {
		set(hdrOperation`, `	if w.Expect == 0 && w.Guard == "" {
		delete(h, hdrExpect)
	}
	if w.Delete {
		set(hdrOperation`),
		"natslock.TestInspectLockedError"},
	{"write-ttl-dropped", "a record has no TTL", "Records",
		writeGo, one(`	set(hdrTTL, ttl)
`, `	_ = ttl
`),
		"natslock.TestLeaseHolderCutOff/cut"},
	{"write-ttl-truncated", "a fraction of a second is cut off a TTL", "Records",
		keyGo, one(`int64((d + time.Second - 1) / time.Second)`, `max(int64(d/time.Second), 1)`),
		"kvstore.TestTTLIsRoundedUp"},
	{"write-ttl-unchecked", "a TTL the server takes for none or for an overflow is sent", "Records",
		keyGo, one(`if d <= 0 || d > maxTTL {`, `if d == 0 {`),
		"kvstore.TestRefusedBeforeIO"},
	{"write-tombstone-stays", "a tombstone has no end", "Records",
		keyGo, one(`tombstoneTTL = time.Second`, `tombstoneTTL = maxTTL`),
		"kvstore.TestTTLIsRoundedUp"},
	{"write-guard-dropped", "a guarded write is not guarded", "Acquire: the reader-writer lock",
		writeGo, one(`set(hdrExpectSubject, s.prefix+w.Guard)`, `delete(h, hdrExpect)`),
		"kvstore.TestCreateGuarded"},
	{"write-guard-wildcard", "a guard is a pattern over all gates", "Acquire: the reader-writer lock",
		writeGo, one(`set(hdrExpectSubject, s.prefix+w.Guard)`, `set(hdrExpectSubject, s.prefix+w.Guard[:strings.IndexByte(w.Guard, '.')+1]+">")`),
		"kvstore.TestCreateGuarded"},
	{"write-guard-unchecked", "a guard may be a pattern", "Acquire: the reader-writer lock",
		writeGo, one(`if err := checkKey(w.Guard); err != nil {`, `if err := checkPattern(w.Guard); err != nil {`),
		"kvstore.TestCreateGuarded"},
	{"write-guard-prefixed", "a guard carries the prefix of a domain", "nats-facts.md, domains",
		writeGo, one(`set(hdrExpectSubject, s.prefix+w.Guard)`, `set(hdrExpectSubject, s.putPrefix+w.Guard)`),
		"kvstore.TestThroughDomain"},
	{"write-key-unchecked", "a key may be a pattern", "Keys",
		writeGo, one(`	if err := checkKey(w.Key); err != nil {
		return err
	}
	if len(w.Value)`, `	if len(w.Value)`),
		"kvstore.TestRefusedBeforeIO"},
	{"name-escape-kept", "two names have one key", "Keys",
		nameGo, one(`c == '_', c == '/', c == '-':
		return true`, `c == '_', c == '/', c == '-', c == '=':
		return true`),
		"internal/lease.TestEncodeName"},
	{"name-pattern", "a name is a pattern", "Keys",
		nameGo, one(`c == '_', c == '/', c == '-':
		return true`, `c == '_', c == '/', c == '-', c == '*', c == '>':
		return true`),
		"internal/lease.TestEncodeName"},
	{"name-empty-token", "a name makes a key that the server refuses", "Keys",
		nameGo, one(`return i > 0 && i < len(name)-1 && name[i-1] != '.' && name[i+1] != '.'`, `return true`),
		"internal/lease.TestEncodeName"},
	{"name-foreign-key", "a foreign key is shown as somebody's lock", "Keys",
		nameGo, one(`return name, err == nil && again == encoded`, `return name, err == nil && again != ""`),
		"internal/lease.TestDecodeNameRefuses"},
	{"name-parts-mixed", "different parts make one name", "Keys",
		nameGo, one(`out[i] = escape.Replace(p)`, `out[i] = strings.Clone(p)
		_ = escape`),
		"internal/lease.TestJoinName"},
	{"write-buffered", "a write goes to the client's reconnect buffer while the connection is down", "Answers",
		requestGo, one(`return nil, fmt.Errorf("%w: not sent, connection is %s", ErrUnavailable, strings.ToLower(st.String()))`, `_ = strings.ToLower`),
		"kvstore.TestDisconnected"},
	{"answer-in-flight-as-held", "a write in flight (10164) is a conflict", "Answers",
		writeGo, one(`return Answer{Err: fmt.Errorf("write of %q: %w: %w", w.Key, ErrInFlight, e)}`, `return Answer{Err: &ConflictError{Key: w.Key, Expected: w.Expect}}`),
		"kvstore.TestAnswers"},
	{"answer-any-stream", "the acknowledgement of another stream is one", "Answers",
		writeGo, one(`e == nil && ack.Stream == s.stream && `, `e == nil && `),
		"kvstore.TestAnswers"},
	{"answer-duplicate", "an acknowledgement of a duplicate is one", "Answers",
		writeGo, one(`ack.Sequence > 0 && !ack.Duplicate:`, `ack.Sequence > 0:`),
		"kvstore.TestAnswers"},
	{"answer-without-sequence", "an empty answer is an acknowledgement", "Answers",
		writeGo, one(`ack.Stream == s.stream && ack.Sequence > 0 && !ack.Duplicate:`, `!ack.Duplicate:`),
		"kvstore.TestAnswers"},
	{"answer-conflict-of-nothing", "a conflict whose sequence cannot be read names 0", "Answers",
		writeGo, one(`if last, ok := lastSequence(e.Description); ok {`, `if last, ok := lastSequence(e.Description); ok || last == 0 {`),
		"kvstore.TestAnswers"},
	{"answer-unreadable", "an answer that cannot be read is an acknowledgement", "Answers",
		writeGo, one(`if err := json.Unmarshal(m.Data, &ack); err != nil {`, `if err := json.Unmarshal(m.Data, &ack); err != nil && len(m.Data) == 0 {`),
		"kvstore.TestAnswers"},
	{"read-replica-lags", "a read may be older than asked for", "Answers",
		readGo, one(`if min > 0 && (errors.Is(err, ErrNotFound) || err == nil && r.Revision < min) {`, `if min > 1<<63 {`),
		"kvstore.TestLaggingReplica"},
	{"read-leader-lags", "a leader that is behind is believed", "Answers",
		listGo, one(`if err != nil || st.LastRevision >= min {
			return st, err`, `if err != nil || st.LastRevision >= 0 {
			return st, err`),
		"kvstore.TestLaggingLeader"},
	{"read-deposed-leader", "a leader that was deposed is believed that there is nothing", "Answers",
		readGo, one(`		if errors.Is(err, ErrNotFound) {
			// Ended`, `		if err == ErrNotFound {
			// Ended`),
		"kvstore.TestDeposedLeaderRead"},
	{"read-list-lags", "a list may be older than asked for", "Acquire: the mutex",
		listGo, one(`if err != nil || l.Revision >= min {
			return l, err`, `if err != nil || l.Revision >= 0 {
			return l, err`),
		"kvstore.TestLaggingList"},
	{"read-list-cut-off", "a list that the server cut off is taken for all there is", "Acquire: the mutex",
		listGo, one(`if m.Header.Get("Nats-Num-Pending") != "0" {`, `if m.Header.Get("Nats-Num-Pending") == "-" {`),
		"kvstore.TestListMany"},
	{"read-list-old-tombstone", "a list believes what a replica that lags shows as deleted", "Acquire: the mutex",
		listGo, one(`if s.Alone() || !s.seen.Load().direct {
		return records, nil`, `if s != nil {
		return records, nil`),
		"kvstore.TestListOldTombstone"},
	{"read-list-gaps", "keys that the leader names and a replica has not are left out", "Acquire: the mutex",
		listGo, one(`		if len(missing) == 0 {
			return l, nil
		}
		// They`, `		if len(missing) >= 0 {
			return l, nil
		}
		// They`),
		"kvstore.TestLaggingReplica"},
	{"read-state-one-page", "only the first page of keys is read", "Acquire: the reader-writer lock",
		listGo, one(`if len(info.State.Subjects) == 0 || req.Offset >= info.Total {`, `if len(info.State.Subjects) >= 0 || req.Offset >= info.Total {`),
		"kvstore.TestStateInPages"},
	{"read-mirror", "a mirror's answer is one of the bucket", "The bucket",
		readGo, one(`name != "" && name != s.stream {`, `name == "" && name != s.stream && s.mirrorTold.Load() {`),
		"internal/topologies.TestMirrorOfTheDead"},
	{"read-any-answer", "an answer about something else is a read of nothing", "Answers",
		readGo, one(`if r.Key != key || r.Revision == 0 {`, `if r.Key != key && r.Revision == 0 && key == "" {`),
		"kvstore.FuzzReplies"},
	{"read-writers-position", "a record's writer can claim another position for it", "ARCHITECTURE.md, what the servers do",
		readGo, one(`return v[len(v)-1]`, `return v[0]`),
		"kvstore.TestForgedHeaders/position"},
	{"read-writers-status", "a record's writer can make it an answer of the server", "ARCHITECTURE.md, what the servers do",
		requestGo, one(`	if m.Header.Get(hdrSequence) != "" {
		return ""
	}`, ``),
		"kvstore.TestForgedHeaders/status"},
	{"read-tombstone-as-record", "a tombstone is a live record", "Records",
		readGo, one(`return op == "DEL" || `, `return `),
		"kvstore.TestConditionalWrites"},
	{"read-garbage-as-tombstone", "a record with unreadable headers is a tombstone", "Records",
		readGo, one(`Deleted: isTombstone(h),
	}.of(key)`, `Deleted: isTombstone(h) || h == nil,
	}.of(key)`),
		"kvstore.TestForgedHeaders/garbage"},
	{"watch-no-recheck", "nobody is told that notifications may have been missed", "Acquire: the mutex",
		watchGo, one(`if state == Connected || state == Closed {
		s.recheck()`, `if state == 0 {
		s.recheck()`),
		"kvstore.TestWatchAfterReconnect"},
	{"watch-next-before-end", "the grant of the next holder hides the end of the lease before it", "Ending",
		"internal/lease/watch.go", one(`if ev.Kind != kvstore.Put || old.Revision == 0 || old.TTL <= 0 {`, `if ev.Kind != 0 || old.Revision == 0 || old.TTL <= 0 {`),
		"natslock.TestWatchExpiryBeforeNextGrant"},
	{"watch-missed-release-expires", "a holder whose release was not heard of is said to have expired", "Ending",
		"internal/lease/watch.go", one(`if old.Time.Add(old.TTL).After(ev.Record.Time.Add(overdueSlack)) {`, `if old.Time.Add(old.TTL).After(ev.Record.Time.Add(time.Hour)) {`),
		"natslock.TestWatchMissedRelease"},
	{"watch-renewed-expires", "the end of a record's first TTL is told although it was renewed", "Acquire: the mutex",
		watchGo, one(`if l == nil || time.Until(l.ends) > 0 {`, `if l == nil {`),
		"kvstore.TestExpiredMeetsRenewal"},
	{"watch-old-replaces-new", "an older record replaces a newer one in the timing of ends", "Acquire: the mutex",
		watchGo, one(`case w.stopped || (l != nil && l.record.Revision > r.Revision):`, `case w.stopped:`),
		"kvstore.TestTrack"},
	{"watch-forged-key", "a notification about a pattern passes", "Break",
		watchGo, one(`if err != nil || checkKey(r.Key) != nil {`, `if err != nil {`),
		"kvstore.TestForgedNotifications"},
}
