package main

const (
	releaseGo = "internal/lease/release.go"
	breakGo   = "internal/lease/break.go"
	onceGo    = "internal/lease/once.go"
)

// releaseMutants weaken how a lease ends: by its holder, an operator, or Close.
var releaseMutants = []mutant{
	{"release-context-late", "the context ends when the record has been deleted", "Ending",
		releaseGo, []edit{{`	lose()
	ending.finish()

	if !working {`, `	lose()
	defer ending.finish()

	if !working {`}},
		"natslock.TestContextEndsBeforeDeletion"},
	{"release-lost-is-fine", "the release of a lease that is over says that all was well", "Ending",
		releaseGo, one(`	if l.e.now() >= l.end {
		lose = l.expire()
	}
	was,`, `	was,`),
		"internal/lease.TestSuspended/release"},
	{"release-takes-all", "a release deletes whatever is under the key", "A live record is never overwritten",
		releaseGo, one(`			case !entry.of(l.id):
				return lost("its record was gone when it was to be released"), nil
`, `			case !entry.of(l.id) && entry.Live():
				revision = entry.Revision
				continue
			case !entry.of(l.id):
				return lost("its record was gone when it was to be released"), nil
`),
		"natslock.TestLeaseUnlockAfterTheEnd"},
	{"release-stale-read", "a refused release is interpreted by a read older than the lease's last write", "Answers",
		releaseGo, one(`max(conflict.Last, revision))`, `0)`),
		"rwlock.TestDeposedLeaderRefuses/writes_true"},
	{"release-broken-is-fine", "the release of a broken lease says that all was well", "Ending",
		releaseGo, []edit{
			{`case entry.Deleted && entry.Status == StatusBroken:`, `case entry.Deleted && entry.Status == StatusWaiting:`},
			{`				broken = &EndError{Name: l.spec.name, Token: l.token, Kind: ErrBroken, Why: entry.brokenBy()}
`, ``},
		},
		"natslock.TestBreakWithoutWatch"},
	{"release-stranger-is-loss", "a release whose first try was applied unheard is a loss", "ARCHITECTURE.md, departures",
		releaseGo, one(`case !entry.of(l.id) && unanswered:`, `case !entry.of(l.id) && unanswered && entry.Zero():`),
		"natslock.TestFaultAtEveryStep/A_lock_delete_1-1/answer_lost"},
	{"release-deposed-is-loss", "a release that a deposed leader refused and another applied is a loss", "ARCHITECTURE.md, departures",
		releaseGo, one(`(entry.of(l.id) || !none && !l.e.kv.Alone())`, `(entry.of(l.id) || !none && l.e.kv.Alone())`),
		"natslock.TestReleaseRefusedAndTaken"},
	{"release-in-flight-is-refused", "a release that a deposed leader calls in flight and another applied is a loss", "ARCHITECTURE.md, departures",
		releaseGo, one(`case !errors.Is(err, kvstore.ErrInFlight) || !l.e.kv.Alone():`, `case !errors.Is(err, kvstore.ErrInFlight):`),
		"natslock.TestReleaseBetweenTwoLeaders/in_flight_and_taken"},
	{"release-old-record", "a release takes a record from before the lease for the next holder's", "Answers",
		releaseGo, one(`!entry.Zero() && entry.Revision < revision && `, `!entry.Zero() && entry.Revision < 0*revision && `),
		"natslock.TestReleaseShownAnOldRecord"},
	{"release-unread-is-refused", "a release that a deposed leader refused and another applied is a loss when the key could not be read", "Answers",
		releaseGo, one(`none := err == nil && entry.Zero() && time.Since(begun) < tombstoneLife`, `none := err != nil || entry.Zero()`),
		"natslock.TestReleaseBetweenTwoLeaders/nothing"},
	{"release-once", "a release that goes unanswered is not tried again", "Ending",
		releaseGo, one(`		case !errors.Is(err, kvstore.ErrInFlight) || !l.e.kv.Alone():
			unanswered = true
		}`, `		case !errors.Is(err, kvstore.ErrInFlight) || !l.e.kv.Alone():
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}`),
		"natslock.TestLeaseReleaseTimeout"},
	{"release-gone-is-fine", "the release of a lease whose record had gone says that all was well", "Ending",
		releaseGo, one(`case found != nil && (errors.Is(found, ErrBroken) || l.e.now() < end):`, `case found != nil && (errors.Is(found, ErrBroken) || end < 0 && end > 0):`),
		"natslock.TestUnlockOfGone"},
	{"release-forgotten", "a release that was not answered in time is not gone on with", "Ending",
		releaseGo, one(`		if err != nil {
			l.e.background(func(ctx context.Context) { l.delete(ctx, StatusGone, time.Now(), l.terms.ttl, nil) })
		}`, ``),
		"natslock.TestReleaseGoesOn"},
	{"release-broken-asks", "the release of a broken lock asks the connection, which may be stuck", "Ending",
		releaseGo, one(`l.e.away.Load()`, `l.e.kv.Healthy() != nil`),
		"natslock.TestBrokenReleaseBlockedWrite"},
	{"break-stale-read", "a break believes a replica that lags that its holder has gone", "Break",
		breakGo, one(`	confirmed := e.kv.Alone()
`, `	confirmed := e.kv != nil
`),
		"rwlock.TestBreakByLaggingReplica/holder"},
	{"break-stale-broken", "a break believes a replica that lags that a lock which has been unlocked is broken", "Break",
		breakGo, one(`case (gone || broken) && !confirmed:`, `case gone && !confirmed:`),
		"rwlock.TestBreakByLaggingReplica/holder"},
	{"once-stale-no", "a one-shot acquire believes a replica that lags that the lock is held", "Acquire: the mutex",
		onceGo, one(`	confirmed := a.e.kv.Alone()
`, `	confirmed := a.e.kv != nil
`),
		"rwlock.TestOnceByLaggingReplica"},
	{"once-stale-reader", "a one-shot writer believes a replica that lags that there are readers", "Acquire: the reader-writer lock",
		onceGo, one(`if len(readers) > 0 && !a.e.kv.Alone() {`, `if len(readers) > 1<<20 && !a.e.kv.Alone() {`),
		"rwlock.TestOnceByLaggingReplica/write_TryLock_after_RUnlock"},
	{"once-stale-reader-inside", "a one-shot writer with the gate believes a replica that lags that there are readers", "Acquire: the reader-writer lock",
		onceGo, one(`		if a.e.kv.Alone() {
			return shown, true`, `		if a.e.kv != nil {
			return shown, true`),
		"rwlock.TestOnceByLaggingReplica/write_TryLock_after_RUnlock"},
	{"once-unknown-owner", "a one-shot writer takes a reader that cannot be read for a holder", "Acquire: the reader-writer lock",
		onceGo, one(`it has just ended, or a replica lags
			continue`, `it has just ended, or a replica lags
			return shown, true`),
		"rwlock.TestTryLockReaderGoneWhenRead"},
	{"close-deletes", "Close deletes the records of holders who may still be at work", "Ending",
		keeperGo, one(`			acts = append(acts, l.lose(ErrClosed, ""))
		}`, `			acts = append(acts, l.lose(ErrClosed, ""), func() { l.e.discard(l.spec.key, l.id, l.last) })
		}`),
		"natslock.TestCloseWithHolderAtWork"},
	{"close-does-not-wait", "Close does not wait for the holders", "Ending",
		keeperGo, one(`if k.lockCount() > 0 {`, `if k.lockCount() < 0 {`),
		"natslock.TestCloseWaitsForHolders"},
	{"close-untold", "Close leaves the contexts of holders as they are", "Ending",
		keeperGo, one(`			acts = append(acts, l.lose(ErrClosed, ""))
		}`, `			l.lose(ErrClosed, "")
		}`),
		"natslock.TestCloseWithHolderAtWork"},
	{"break-short", "a broken record lives shorter than the lease it ends", "Break",
		breakGo, one(`	b.TTL = int64(ttl / time.Second)
	value,`, `	ttl = max(ttl/2, time.Second)
	b.TTL = int64(ttl / time.Second)
	value,`),
		"natslock.TestBreakOfDeafHolder"},
	{"break-fixed-truncated", "what is left of a broken fixed lease is rounded down", "Break",
		breakGo, one(`ttl = max(ceilSecond(ttl-age), time.Second)`, `ttl = max((ttl - age).Truncate(time.Second), time.Second)`),
		"natslock.TestBreakOfFixedLease"},
	{"break-fixed-age-guessed", "the age of a broken fixed lease is taken by the operator's clock", "Break",
		breakGo, one(`age := max(serverTime.Sub(entry.Time)-overdueSlack, 0)`, `age := max(time.Until(serverTime)+time.Since(entry.Time)+time.Second, 0)`),
		"natslock.TestBreakOfFixedLease"},
	{"break-anybody", "a break meets whoever holds the lock by now", "Break",
		breakGo, one(`entry.ClaimID() != req.ID
`, `entry.ClaimID() == ""
`),
		"natslock.TestBreakOnlyWhoWasShown"},
	{"break-again", "a broken record is broken again, for another TTL", "Break",
		breakGo, one(`broken := !gone && entry.Status == StatusBroken`, `broken := !gone && entry.Status == StatusBroken && sent`),
		"natslock.TestBreakOnlyWhoWasShown"},
	{"break-token-lost", "a broken record does not name the token it had", "Break",
		breakGo, one(`b.Token = entry.TokenOrTicket()`, `b.Token = 0`),
		"natslock.TestBreakTellsTheHolder"},
	{"break-lets-in", "a break lets the next one in at once", "Break",
		breakGo, one(`if req.Immediately || `, `if req.Reason != "-" || `),
		"natslock.TestBreakWaitsForTheHolder"},
}
