package main

const (
	acquireGo  = "internal/lease/acquire.go"
	bidGo      = "internal/lease/bid.go"
	breakGo    = "internal/lease/break.go"
	claimGo    = "internal/lease/claim.go"
	clockGo    = "internal/lease/clock.go"
	engineGo   = "internal/lease/engine.go"
	keeperGo   = "internal/lease/keeper.go"
	leaseGo    = "internal/lease/lease.go"
	listsGo    = "internal/lease/lists.go"
	nameGo     = "internal/lease/key.go"
	overdueGo  = "internal/lease/overdue.go"
	queueGo    = "internal/lease/queue.go"
	recordGo   = "internal/lease/record.go"
	releaseGo  = "internal/lease/release.go"
	renewGo    = "internal/lease/renew.go"
	rwGo       = "internal/lease/rw.go"
	shareGo    = "internal/lease/share.go"
	suspectGo  = "internal/lease/suspect.go"
	validityGo = "internal/lease/validity.go"
)

// patches are the mutants of internal/lease. They are patches of its text until its
// code has moved into rooms, whose lines get labels.
var patches = []mutant{
	patched("claim-no-margin", "validity lasts for the whole TTL",
		"natslock.TestValidityCountsFromSending/lock_take_300ms", validityGo,
		`sent.Add(t.ttl - t.margin) }`, `sent.Add(t.ttl) }`),
	patched("claim-no-margin-floor", "the margin of a long lease is less than a thousandth",
		"natslock.TestLeaseSafetyMargin", validityGo,
		`margin: max(m, ttl/marginFloor)}`, `margin: m}`),
	patched("claim-ttl-truncated", "a fraction of a second is cut off the TTL",
		"natslock.TestLeaseFractionIsRoundedUp", validityGo,
		`return (d + time.Second - 1) / time.Second * time.Second`, `return max(d/time.Second*time.Second, time.Second)`),
	patched("claim-until-too-short", "a lease until a given time has no margin left at its end",
		"natslock.TestLeaseUntil", validityGo,
		`if t.ttl-t.margin >= d {`, `if t.ttl >= d {`),
	patched("renew-too-late", "a renewal comes when the validity is over",
		"natslock.TestRenewFractionBeyondValidity", validityGo,
		`return min(time.Duration(float64(t.ttl)*fraction), (t.ttl-t.margin)*4/5)`, `return time.Duration(float64(t.ttl) * fraction)`),
	patched("clock-wall-unwatched", "the clock does not notice a suspend by the wall clock",
		"internal/lease.TestClockCountsSuspend", clockGo,
		`max(moved-known, known-moved) < clockNoise/2`, `max(moved-known, known-moved) >= 0`),
	patched("clock-wall-believed", "the clock does not notice a suspend if the wall clock is set back after it",
		"internal/lease.TestClockAsksAgain", clockGo,
		`age >= 0 && age < lookAgain`, `age < 1<<62`),
	patched("record-any-version", "a record of another version is read as one of ours",
		"natslock.TestCorruptRecord", recordGo,
		`if b.Version != recordVersion || b.ID == ""`, `if b.ID == ""`),
	patched("record-no-id", "a record without an id is read as one of ours",
		"natslock.TestCorruptRecord", recordGo,
		`b.ID == "" || `, ``),
	patched("record-unreadable-is-free", "a record that cannot be read passes for one of ours",
		"natslock.TestCorruptRecord", recordGo,
		`return !e.Zero() && !e.Deleted }`, `return !e.Zero() && !e.Deleted && !e.Unreadable }`),
	patched("name-pattern", "a name is a pattern, and two names have one key",
		"internal/lease.TestEncodeName", nameGo,
		`c == '_', c == '/', c == '-':
		return true`, `c == '_', c == '/', c == '-', c == '*', c == '>':
		return true`),
	patched("overdue-no-slack", "a record is overdue as soon as its TTL is over",
		"natslock.TestOverdue/holder/lock", overdueGo,
		`e.Time.Add(e.Record.TTL+overdueSlack)`, `e.Time.Add(e.Record.TTL)`),
	patched("overdue-never", "no record is ever overdue",
		"natslock.TestOverdue/holder/lock", overdueGo,
		`return e.Live() && !e.Unreadable`, `return false && !e.Unreadable`),
	patched("overdue-unreadable", "a record that cannot be read can be overdue",
		"natslock.TestOverdueUnreadable", overdueGo,
		`e.Live() && !e.Unreadable && e.Record`, `e.Live() && e.Record`),
	patched("overdue-local-clock", "the local clock decides whether a record is overdue",
		"natslock.TestOverdueWrongClock", overdueGo,
		`	st, err := e.kv.State(ctx, "")
	return err == nil && entry.overdue(st.Time), err`, `	_, err := e.kv.State(ctx, "")
	return err == nil, err`),
	patched("overdue-place-stays", "an overdue place holds up the places behind it",
		"natslock.TestOverdue/waiter/try", overdueGo,
		`		if entry.overdue(st.Time) {
			err`, `		if entry.Zero() && entry.overdue(st.Time) {
			err`),
	patched("claim-unguarded-join", "a reader's join is not conditional on the gate",
		"rwlock.TestOneShot", claimGo,
		`Expect: expect, Guard: c.guard, TTL: t.ttl}`, `Expect: expect, TTL: t.ttl}`),
	patched("claim-deposed-refusal", "an attempt that a deposed leader refused and another one applied passes for a record of another client",
		"natslock.TestClaimRefusedByDeposedLeader", claimGo,
		`(!c.attempts[n-1].answered || c.attempts[n-1].doubtful)`, `!c.attempts[n-1].answered`),
	patched("claim-over-answer-kept", "the record of an acknowledgement to a claim that is over stays",
		"natslock.TestClaimAtZeroLandsLate/told_by_the_answer", claimGo,
		`discard := late && a.Err == nil && n != c.granted`, `discard := false`),
	patched("claim-refusal-read-stale", "a refusal is interpreted by a read older than it",
		"natslock.TestRefusalIsReadUpOn", claimGo,
		`entry, err := c.e.read(ctx, key, conflict.Last)`, `entry, err := c.e.read(ctx, key, 0)`),
	patched("claim-adopt-stranger", "any live record that is found is adopted",
		"natslock.TestHeldIsHeld", claimGo,
		`case !entry.of(c.id):
			return verdict{outcome: busy`, `case entry.Status == StatusWaiting:
			return verdict{outcome: busy`),
	patched("claim-adopt-broken", "an own broken record is adopted",
		"natslock.TestBreakAgainstLateAnswer", claimGo,
		`case entry.Status == StatusBroken:
			// Never`, `case entry.Status == StatusGone:
			// Never`),
	patched("claim-adopt-newest", "a record that is found counts from the sending of a later attempt",
		"natslock.TestAdoptedCountsFromItsOwnSending", claimGo,
		`return c.take(entry.Attempt, entry.Revision, c.e.now()), true`, `return c.take(newest, entry.Revision, c.e.now()), true`),
	{label: "claim-adopt-forged", weak: "a record with the number of an attempt that was refused is adopted",
		test: "natslock.TestForgedAttempt", patch: &patch{claimGo, []edit{
			{`case !c.open(entry.Attempt):`, `case entry.Attempt > 1<<20:`},
			{`return c.take(entry.Attempt, entry.Revision, c.e.now()), true`, `return c.take(min(max(entry.Attempt, 1), newest), entry.Revision, c.e.now()), true`},
		}}},
	patched("claim-late-answer", "an acknowledgement after the end of its own validity is a grant",
		"natslock.TestFirstAnswerTooLate", claimGo,
		`if now := c.e.now(); max(at, now) >= a.terms.end(a.sent) {`, `if c.e.now() < at {`),
	patched("claim-tokens-backwards", "a token below those already seen is granted",
		"natslock.TestTokensGoBackwards", claimGo,
		`if revision <= a.floor {`, `if revision == 0 {`),
	patched("claim-given-up-lets-land", "an attempt that was given up can be applied later",
		"natslock.TestGivenUpDoesNotLand", claimGo,
		`		if !givenUp {
			return
		}`, `		if givenUp || !givenUp {
			return
		}`),
	patched("claim-given-up-takes-all", "a claim that was given up deletes the record of another claim",
		"natslock.TestForgedSighting", claimGo,
		`err == nil && !(entry.of(c.id) && entry.Live())`, `err == nil && !entry.Live()`),
	patched("claim-over-sighting-ignored", "the notification of a record of a claim that is over is ignored",
		"natslock.TestClaimAtZeroLandsLate/told_by_the_notification", claimGo,
		`unwanted := c.over && entry.of(c.id)`, `unwanted := !c.over && entry.of(c.id)`),
	patched("claim-sighting-believed", "a notification alone leads to a deletion",
		"natslock.TestForgedSighting", claimGo,
		`err == nil && e.of(c.id) && e.Live() && e.Renewal == 0 && e.Attempt != c.granted {`, `err == nil {`),
	patched("claim-validity-from-answer", "validity counts from the answer, not from the sending",
		"natslock.TestValidityCountsFromSending/lock_take_700ms", claimGo,
		`end: a.terms.end(a.sent), last:`, `end: a.terms.end(c.e.now()), last:`),
	patched("claim-over-granted", "an attempt that was answered before the claim was over is granted after it",
		"natslock.TestBreakAgainstLateAnswer", bidGo,
		`case spoilt:
			b.close()`, `case spoilt:
			_ = b.cur`),
	patched("claim-join-same-id", "a join without an answer is repeated under the same id",
		"rwlock.TestRepeatedJoin", bidGo,
		`b.cur.guard != "" && !errors.Is`, `b.cur.guard == "" && b.once && !errors.Is`),
	patched("lease-clock-not-asked", "the state of a lease is that of the renewer's last check",
		"internal/lease.TestSuspended/state", leaseGo,
		`if l.state == Held && left <= 0 {`, `if l.state == Lost && left <= 0 {`),
	{label: "lease-never-ends", weak: "the context of a lease lasts until the server says otherwise",
		test: "natslock.TestLeaseHolderCutOff/cut", patch: &patch{leaseGo, []edit{
			{`	if now >= l.end {
		return`, `	if now >= l.end.Add(time.Hour) {
		return`},
			{`	l.due = l.end
`, `	l.due = l.end.Add(time.Hour)
`},
			{`if l.state == Held && left <= 0 {`, `if l.state == Lost && left <= 0 {`},
		}}},
	patched("renew-shorter-unnoticed", "a shorter TTL shortens the validity only when it is confirmed",
		"natslock.TestLeaseExtend", renewGo,
		`if end := t.end(now); end < l.end {`, `if end := t.end(now); end < l.end && l.end < end {`),
	patched("renew-expects-nothing", "a renewal that was refused because nothing is there is sent again, expecting nothing",
		"natslock.TestGoneIsNotWrittenAgain", renewGo,
		`	case errors.As(a.Err, &conflict):
		switch {`, `	case errors.As(a.Err, &conflict):
		if conflict.Last == 0 {
			l.last = 0
			l.renewNow(now)
		}
		switch {
		case conflict.Last == 0:`),
	patched("renew-refused-stale-read", "a refused renewal is interpreted by a read older than the last confirmation",
		"rwlock.TestDeposedLeaderRefuses/writes_true", renewGo,
		`at := max(conflict.Last, l.last)`, `at := uint64(0)`),
	patched("renew-late-revives", "a confirmation after the end of the validity prolongs it",
		"internal/lease.TestSuspended/confirmation", renewGo,
		`case l.state == Held && now < l.end:`, `case l.state == Held:`),
	patched("renew-closed-is-deleted", "a confirmation that comes after Close deletes the record",
		"natslock.TestCloseMeetsRenewal", renewGo,
		`case l.state == Lost && l.cause.Kind != ErrLost:`, `case l.state == Lost && l.cause.Kind == nil:`),
	patched("renew-from-answer", "a renewal counts from its answer",
		"natslock.TestValidityCountsFromSending/lock_renew_2s", renewGo,
		`l.end = max(l.end, s.terms.end(s.at))`, `l.end = max(l.end, s.terms.end(l.e.now()))`),
	patched("found-broken-as-renewal", "an own broken record passes for a renewal",
		"natslock.TestBreakOfUnheardRenewal", suspectGo,
		`case own && entry.Live() && entry.Status == StatusHeld && entry.Renewal > 0 && entry.Renewal <= l.renewals:`,
		`case own && entry.Live() && entry.Renewal > 0 && entry.Renewal <= l.renewals:`),
	patched("found-newest", "a renewal that is found counts from the sending of a later one",
		"natslock.TestFoundRenewalCountsFromItsOwnSending", suspectGo,
		`act = l.confirmed(entry.Renewal, entry.Revision, l.e.now())`, `act = l.confirmed(l.renewals, entry.Revision, l.e.now())`),
	patched("found-broken-deleted", "the holder's client deletes its broken record while the holder still works",
		"natslock.TestBreakWaitsForTheHolder", suspectGo,
		`case own && entry.Status == StatusBroken:`, `case own && entry.Deleted && entry.Status == StatusBroken:`),
	patched("found-stranger-ignored", "the record of another client in place of its own does not end the lease",
		"natslock.TestBreakOverwritten", suspectGo,
		`	case entry.Live():
		act = l.lose(ErrLost, fmt.Sprintf("its record was replaced at revision %d", entry.Revision))`, `	case entry.Live():
		act = func() { _ = fmt.Sprint() }`),
	patched("found-deleted-ignored", "the deletion of its record does not end the lease",
		"natslock.TestBreakByHand/fixed", suspectGo,
		`act = l.lose(ErrLost, "its record was deleted")`, `k.moved(l)`),
	patched("watch-deaf", "the notification of a break does not reach the holder",
		"natslock.TestBreakTellsTheHolder", suspectGo,
		`if l.state != Held || ev.Record.Revision <= l.last {`, `if l.state == Held || ev.Record.Revision <= l.last {`),
	patched("bucket-remade-unnoticed", "leases outlive the bucket that they were in",
		"natslock.TestHandleBucketMadeAgain", engineGo,
		`		e.keeper.loseAll(err.Error())`, ``),
	patched("bucket-never-verified", "the bucket is not verified again",
		"natslock.TestHandleBucketDeleted", keeperGo,
		`if len(k.due) > 0 && now >= k.verify {`, `if len(k.due) > 0 && now >= k.verify && k.stopped {`),
	patched("release-lost-is-fine", "the release of a lease that is over says that all was well",
		"internal/lease.TestSuspended/release", releaseGo,
		`	if l.e.now() >= l.end {
		lose = l.lose(ErrLost, overdue)
	}
	was,`, `	was,`),
	{label: "release-context-late", weak: "the context does not end before the record is deleted",
		test: "natslock.TestContextEndsBeforeDeletion", patch: &patch{releaseGo, []edit{{`	lose()
	ending.finish()

	if !working {`, `	lose()
	defer ending.finish()

	if !working {`}}}},
	patched("release-forgotten", "a release that was not answered in time is given up",
		"natslock.TestReleaseGoesOn", releaseGo,
		`		if err != nil {
			l.e.background(func(ctx context.Context) { l.delete(ctx, StatusGone, time.Now(), l.terms.ttl, nil) })
		}`, ``),
	patched("release-stale-read", "a refused release is interpreted by a read older than the lease's last write",
		"rwlock.TestDeposedLeaderRefuses/writes_true", releaseGo,
		`max(conflict.Last, revision))`, `0)`),
	patched("release-deposed-is-loss", "a release that a deposed leader refused and another one applied is a loss",
		"natslock.TestReleaseRefusedAndTaken", releaseGo,
		`(entry.of(l.id) || !none && !l.e.kv.Alone())`, `(entry.of(l.id) || !none && l.e.kv.Alone())`),
	patched("release-stranger-is-loss", "a release whose first try was applied without an answer is a loss",
		"natslock.TestFaultAtEveryStep/A_lock_delete_1-1/answer_lost", releaseGo,
		`case !entry.of(l.id) && unanswered:`, `case !entry.of(l.id) && unanswered && entry.Zero():`),
	patched("release-takes-all", "a release deletes the record of the next holder",
		"natslock.TestLeaseUnlockAfterTheEnd", releaseGo,
		`			case !entry.of(l.id):
				return lost("its record was gone when it was to be released"), nil
`, `			case !entry.of(l.id) && entry.Live():
				revision = entry.Revision
				continue
			case !entry.of(l.id):
				return lost("its record was gone when it was to be released"), nil
`),
	patched("queue-place-left", "a waiter that gives up leaves its place behind",
		"natslock.TestFIFOGivingUp", queueGo,
		`			place.leave(StatusGone)
		}
		if v.outcome`, `			_ = place
		}
		if v.outcome`),
	patched("queue-gone-says-granted", "a waiter that gives up makes its successor first",
		"natslock.TestGivingUpMakesNobodyFirst", queueGo,
		`			place.leave(StatusGone)
		}
		if v.outcome`, `			place.leave(StatusGranted)
		}
		if v.outcome`),
	patched("queue-place-used-anywhere", "the key of a place is used again where a list may show what it had before",
		"natslock.TestPlaceIsNewWhereListsLag", queueGo,
		`if a.e.kv.Current() {`, `if a.e.kv != nil {`),
	patched("queue-stale-list", "the queue is read from a state that need not contain the waiter's own place",
		"natslock.TestStaleQueueList", queueGo,
		`queue, err := a.e.waiters(a.ctx, pattern, place.token, from)`, `queue, err := a.e.waiters(a.ctx, pattern, 0, from)`),
	patched("queue-everybody-first", "a waiter does not wait for the waiters before it",
		"natslock.TestFIFOOneReleaseWakesOneWaiter", queueGo,
		`for pred >= 0 && !a.blocks(queue[pred]) {`, `for pred >= 0 {`),
	patched("queue-part-is-all", "a waiter that finds no place before its own in a part of the queue is first",
		"natslock.TestLongQueue", queueGo,
		`case from > 0: // it is further back, if there is one`, `case from > 1<<62: // it is further back, if there is one`),
	patched("queue-paused-first", "a paused first waiter holds up the others for its TTL",
		"natslock.TestFIFOIdleLockIsTakenOutOfTurn", queueGo,
		`now.Sub(idle.since) >= idleFor+rank+rand.N(rank+1)`, `now.Sub(idle.since) >= time.Hour+rank+rand.N(rank+1)`),
	patched("queue-no-backstop", "a waiter without notifications does not read by itself",
		"natslock.TestReleaseUnheard", queueGo,
		`return b.place/3 + rand.N(b.place/30)`, `return time.Hour + rand.N(time.Second)`),
	patched("queue-forged-tombstone", "a notification makes a waiter claim at the revision of a live record",
		"natslock.TestForgedTombstone", queueGo,
		`expect, waiting = a.look(ev.Record.Revision)`, `expect, waiting = ev.Record.Revision, false`),
	patched("queue-own-record-waited-for", "a waiter waits for its own late record",
		"natslock.TestOwnAttemptLandsWhileWaiting", queueGo,
		`return b.cur != nil && e.Live() && e.of(b.cur.id) }`, `return b.cur != nil && e.Zero() && e.of(b.cur.id) }`),
	patched("queue-rubbish-has-a-place", "a record that cannot be read has a place in the queue",
		"natslock.TestCorruptQueue", listsGo,
		`!entry.Unreadable && entry.Status == StatusWaiting {`, `!entry.Zero() {`),
	patched("queue-bypass-for-ever", "a client takes its own lock again past the waiters",
		"natslock.TestFIFOReacquireStarvesNobody", acquireGo,
		`case known.tombstone == 0 || known.unqueued:`, `case known.tombstone == 0 || known.unqueued || known.tombstone > 0:`),
	patched("queue-stale-for-newcomer", "a newcomer reads the queue in a state that need not have the tombstone that it met",
		"rwlock.TestNewcomer/lagging", acquireGo,
		`if a.e.kv.Alone() {`, `if a.e.kv.Alone() || revision > 0 {`),
	{label: "enter-live", weak: "a newcomer claims at the revision of a live record",
		test: "natslock.TestMessagesTryLockBusy", patch: &patch{acquireGo, []edit{
			{`held := entry.Live() && !a.bid.mine(entry)`, `held := entry.Live() && entry.Zero()`},
		}}},
	patched("queue-passed-by-newcomer", "a newcomer that finds the lock free takes it past the waiters",
		"rwlock.TestNewcomer", acquireGo,
		`case len(queue) > 0 || l.More:`, `case len(queue) < 0 && l.More:`),
	patched("queue-rest-unread", "a newcomer takes the part of a queue that it has read for all of it",
		"natslock.TestNewcomerReadsAPart", acquireGo,
		`case len(queue) > 0 || l.More:`, `case len(queue) > 0:`),
	patched("rw-first-by-predecessor", "a writer is first when its immediate predecessor was granted",
		"rwlock.TestWriterBehindSlowReader", rwGo,
		`a.shortcut = false`, `a.shortcut = true`),
	patched("rw-reader-passes-writer", "a reader does not wait for writers",
		"rwlock.TestLine", rwGo,
		`return !a.reads() || Mode(earlier.Mode) == Exclusive`, `return !a.reads()`),
	patched("rw-writer-passes-readers", "a writer waits for earlier writers only",
		"rwlock.TestWriterBehindSlowReader", rwGo,
		`return !a.reads() || Mode(earlier.Mode) == Exclusive`, `return Mode(earlier.Mode) == Exclusive`),
	patched("drain-older-than-gate", "an answer from before the gate's write proves that nobody reads",
		"rwlock.TestNoProof/older_than_the_gate_by_one", rwGo,
		`r.knows = st.LastRevision >= r.revision && `, `r.knows = r.revision > 0 && `),
	patched("drain-without-leader", "the answer of a server that knows of no leader proves that nobody reads",
		"rwlock.TestNoProof/without_a_leader", rwGo,
		`st.LastRevision >= r.revision && st.Leader != ""`, `st.LastRevision >= r.revision`),
	patched("drain-broken-as-dead", "a reader whose record can be read is gone",
		"rwlock.TestBrokenReaderIsListed", rwGo,
		`case err == nil && rec.Deleted:`, `case err == nil && (rec.Deleted || entryOf(rec).Status == StatusBroken):`),
	patched("overdue-reader-stays", "a draining writer waits for an overdue reader",
		"natslock.TestOverdue/reader/write", rwGo,
		`if entry.overdue(st.Time) {`, `if entry.overdue(st.Time.Add(-time.Hour)) {`),
	patched("overdue-reader-no-cas", "an overdue reader counts as gone though its deletion was refused",
		"natslock.TestOverdueReaderRenews", rwGo,
		`if a.e.deleteOverdue(ctx, entry) == nil {`, `if a.e.deleteOverdue(ctx, entry) == nil || true {`),
	patched("drain-not-found-as-dead", "a reader that is listed and not found is gone",
		"rwlock.TestNoProof/listed,_and_not_found_by_a_replica_that_lags", rwGo,
		`r.live = append(r.live, Entry{}) // a replica lags, or it has just expired: ask again`, ``),
	patched("drain-unread-as-dead", "a reader that is listed and cannot be read is gone",
		"rwlock.TestNoProof/listed,_and_not_to_be_read", rwGo,
		`		default:
			return roll{}, err
		}`, `		default:
			d.gone[key] = true
		}`),
	patched("drain-gate-lost", "a writer is granted although its gate was lost while it drained",
		"rwlock.TestGateLostInTheDrain", rwGo,
		`		if _, _, cause := l.Status(); cause != nil {
			return verdict{outcome: spoilt}
		}`, ``),
	patched("drain-skipped", "a writer that has the gate does not wait for the readers",
		"rwlock.TestReadersAndWriters", acquireGo,
		`if v = a.drain(l); v.outcome == 0 {`, `if v = (verdict{}); v.outcome == 0 {`),
	patched("drain-one-answer", "on several replicas one answer proves that nobody reads",
		"rwlock.TestDeposedLeader", rwGo,
		`		case nobody && r.alone:`, `		case nobody && (r.alone || r.revision > 0):`),
	patched("drain-late", "two answers of any age prove that nobody reads",
		"rwlock.TestTwoAnswers", rwGo,
		`if r.at.Sub(first.sent) < proofWindow {`, `if r.at > first.sent {`),
	patched("drain-window", "two answers may take longer than the shortest lease lasts",
		"rwlock.TestTwoAnswers", rwGo,
		`proofWindow = MinTTL * 4 / 5`, `proofWindow = MinTTL * 6 / 5`),
	patched("drain-without-renewal", "two answers prove that nobody reads without an acknowledged gate write between them",
		"rwlock.TestCutOffIsNotSlow", rwGo,
		`			if l.confirm(ctx) == nil {
				_, renewed = l.confirmation()
			}`, `			_ = l.confirm(ctx)
			_, renewed = l.confirmation()`),
	patched("share-after-renewal", "a lease is shared after it was renewed",
		"rwlock.TestSharingEnds", shareGo,
		`sh.host.state == Held && sh.host.renewals == 0 && `, `sh.host.state == Held && `),
	patched("share-behind-gate", "a lease is shared although the client has seen a gate",
		"rwlock.TestSharing", shareGo,
		`if ev.Kind == kvstore.Put || ev.Kind == kvstore.Recheck {`, `if ev.Kind == kvstore.Expired {`),
	patched("share-first-leaves", "the first goroutine that leaves releases the lease of all",
		"rwlock.TestReleasedIsNotShared", shareGo,
		`	if g.share.guests > 0 {
		return false
	}`, ``),
	patched("break-stale-read", "a break believes a replica that lags that the holder has gone",
		"rwlock.TestBreakByLaggingReplica/holder", breakGo,
		`	atLeast := req.Token
`, `	atLeast := uint64(0)
`),
	patched("break-anybody", "a break meets another holder than the operator has seen",
		"natslock.TestBreakOnlyWhoWasShown", breakGo,
		`case entry.TokenOrTicket() != req.Token:`, `case entry.TokenOrTicket() == 0:`),
	patched("break-again", "a broken record is broken again, for another TTL",
		"natslock.TestBreakOnlyWhoWasShown", breakGo,
		`case entry.Status == StatusBroken && !entry.Unreadable && !req.Now:`, `case entry.Status == StatusBroken && !entry.Unreadable && req.Now && try > 0:`),
	patched("break-short", "a broken record lives shorter than the lease it ends",
		"natslock.TestBreakOfDeafHolder", breakGo,
		`	b.TTL = int64(ttl / time.Second)
	value,`, `	ttl = max(ttl/2, time.Second)
	b.TTL = int64(ttl / time.Second)
	value,`),
	patched("overdue-break-exact", "a fixed lease is broken for its rest exactly",
		"natslock.TestOverdueBreakOfFixedLease", "internal/lease/break.go",
		`serverTime.Sub(entry.Time)-overdueSlack`, `serverTime.Sub(entry.Time)`),
	patched("break-fixed-truncated", "the rest of a broken fixed lease is rounded down",
		"natslock.TestBreakOfFixedLease", breakGo,
		`ttl = max(ceilSecond(ttl-age), time.Second)`, `ttl = max((ttl - age).Truncate(time.Second), time.Second)`),
	patched("break-lets-in", "a break lets the next holder in at once",
		"natslock.TestBreakWaitsForTheHolder", breakGo,
		`if req.Now || `, `if req.Reason != "-" || `),
}
