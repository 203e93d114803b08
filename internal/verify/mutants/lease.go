package main

const (
	leaseGo   = "internal/lease/lease.go"
	renewGo   = "internal/lease/renew.go"
	suspectGo = "internal/lease/suspect.go"
	keeperGo  = "internal/lease/keeper.go"
	engineGo  = "internal/lease/engine.go"
	acquireGo = "internal/lease/acquire.go"
	clockGo   = "internal/lease/clock.go"
)

// leaseMutants weaken how a lease is kept and when it is believed in.
var leaseMutants = []mutant{
	{"lease-never-ends", "the context of a lease lasts until the server says otherwise", "A lease and its validity",
		leaseGo, []edit{
			{`	if now >= l.end {
		return`, `	if now >= l.end.Add(time.Hour) {
		return`},
			{`	l.due = l.end
`, `	l.due = l.end.Add(time.Hour)
`},
			{`if l.state == Held && left <= 0 {`, `if l.state == Lost && left <= 0 {`},
		},
		"natslock.TestLeaseHolderCutOff/cut"},
	{"lease-clock-not-asked", "the state of a lease is what the keeper has come to", "A lease and its validity",
		leaseGo, one(`if l.state == Held && left <= 0 {`, `if l.state == Lost && left <= 0 {`),
		"internal/lease.TestSuspended/state"},
	{"clock-wall-unwatched", "a suspend is noticed when the clock is asked the next time, not at the first look", "A lease and its validity",
		clockGo, one(`max(moved-known, known-moved) < clockNoise/2`, `max(moved-known, known-moved) >= 0`),
		"internal/lease.TestClockCountsSuspend"},
	{"clock-wall-believed", "a suspend after which the wall clock was set back is never noticed", "A lease and its validity",
		clockGo, one(`age >= 0 && age < lookAgain`, `age < 1<<62`),
		"internal/lease.TestClockAsksAgain"},
	{"lease-keeper-writes", "the keeper's goroutine writes to the network itself", "A lease and its validity",
		leaseGo, one(`		l.e.sender.add(l.renew)
	}
	return nil`, `		return l.renew
	}
	return nil`),
		"natslock.TestLeaseBlockedWrite"},
	{"lease-dropped-is-renewed", "a lease is renewed although its handle was dropped", "api.md, Lock",
		leaseGo, one(`l.state == Held && !l.abandoned && (`, `l.state == Held && (`),
		"natslock.TestHandleDropped"},
	{"lease-until-outlived", "a lease until a given time is valid for its whole TTL", "api.md, Until",
		acquireGo, one(`l.end = min(l.end, l.cap)
		}
		if d :=`, `
		}
		if d :=`),
		"natslock.TestLeaseUntil"},
	{"lease-token-forgotten", "renewals do not carry the token", "A lease and its validity",
		leaseGo, one(`b.ID, b.Token, b.Renewal = l.id, l.token, n`, `b.ID, b.Token, b.Renewal = l.id, 0, n`),
		"natslock.TestBreakOnlyWhoWasShown"},
	{"lease-reconnect-unconfirmed", "what was on its way when the connection broke is not confirmed when it is back", "A lease and its validity",
		engineGo, one(`		e.keeper.renewAll()
`, ``),
		"natslock.TestLeaseShortCut"},
	{"lease-closed-connection", "waiters of a closed connection go on waiting", "Ending",
		engineGo, one(`		e.quit(fmt.Errorf("%w: the connection was closed", ErrUnavailable))
`, `		_ = fmt.Errorf
`),
		"natslock.TestConnectionClosedBefore"},
	{"renew-extend-forgotten", "an Extend that meets a renewal waits for the next one", "A lease and its validity",
		renewGo, one(`			// since; what asked for it is still to be confirmed.
			l.again(now)`, `			// since; what asked for it is still to be confirmed.`),
		"natslock.TestLeaseExtendMeetsRenewal"},
	{"renew-from-answer", "a renewal counts from its answer", "A lease and its validity",
		renewGo, one(`l.end = max(l.end, s.terms.end(s.at))`, `l.end = max(l.end, s.terms.end(l.e.now()))`),
		"natslock.TestValidityCountsFromSending/lock_renew_2s"},
	{"renew-late-revives", "a confirmation after the end of the validity prolongs it", "A lease and its validity",
		renewGo, one(`case l.state == Held && now < l.end:`, `case l.state == Held:`),
		"internal/lease.TestSuspended/confirmation"},
	{"renew-late-record-stays", "the record of a renewal confirmed too late is left to its TTL", "A lease and its validity",
		renewGo, one(`		lose()
		l.e.discard(l.spec.key, l.id, revision)`, `		lose()
		_ = revision`),
		"natslock.TestLateRenewalDoesNotRevive"},
	{"renew-expects-nothing", "a renewal refused because nothing is there is sent again, expecting nothing", "Answers",
		renewGo, one(`	case errors.As(a.Err, &conflict):
		switch {`, `	case errors.As(a.Err, &conflict):
		if conflict.Last == 0 {
			l.last = 0
			l.renewNow(now)
		}
		switch {
		case conflict.Last == 0:`),
		"natslock.TestGoneIsNotWrittenAgain"},
	{"renew-over-stranger", "a refused renewal is sent again, expecting what is there", "Answers",
		renewGo, one(`	case errors.As(a.Err, &conflict):
		switch {`, `	case errors.As(a.Err, &conflict):
		if conflict.Last > l.last {
			l.last = conflict.Last
			l.renewNow(now)
		}
		switch {`),
		"natslock.TestBreakOfUnheardRenewal"},
	{"renew-refused-is-lost", "a refusal that names nothing ends the lease without a look", "ARCHITECTURE.md, deposed leaders",
		renewGo, one(`l.resolving = true
			l.e.background(func(ctx context.Context) { l.resolve(ctx, at, true) })`, `if conflict.Last == 0 {
				act = l.lose(ErrLost, "refused")
				break
			}
			l.resolving = true
			l.e.background(func(ctx context.Context) { l.resolve(ctx, at, true) })`),
		"rwlock.TestDeposedLeaderRefuses/writes_true"},
	{"renew-refused-stale-read", "a refused renewal is interpreted by a read older than the last confirmation", "Answers",
		renewGo, one(`at := max(conflict.Last, l.last)`, `at := uint64(0)`),
		"rwlock.TestDeposedLeaderRefuses/writes_true"},
	{"renew-in-flight-is-lost", "a renewal that meets a write in flight (10164) ends the lease", "Answers",
		renewGo, one(`		l.retries++
		l.nextRenewal = now.Add(inFlightPause(l.retries))
		k.moved(l)`, `		act = l.lose(ErrLost, "in flight")`),
		"natslock.TestInFlightIsNotHeld"},
	{"renew-shorter-unnoticed", "a shorter TTL shortens the validity only when it is confirmed", "A lease and its validity",
		renewGo, one(`if end := t.end(now); end < l.end {`, `if end := t.end(now); end < l.end && l.end < end {`),
		"natslock.TestLeaseExtend"},
	{"renew-too-late", "a renewal comes when the validity is over", "A lease and its validity",
		validityGo, one(`return min(time.Duration(float64(t.ttl)*fraction), (t.ttl-t.margin)*4/5)`, `return time.Duration(float64(t.ttl) * fraction)`),
		"natslock.TestRenewFractionBeyondValidity"},
	{"renew-closed-is-deleted", "a confirmation that comes after Close deletes the record", "Ending",
		renewGo, one(`case l.state == Lost && l.cause.Kind != ErrLost:`, `case l.state == Lost && l.cause.Kind == nil:`),
		"natslock.TestCloseMeetsRenewal"},
	{"found-newest", "a renewal found counts from the sending of the newest", "Answers",
		suspectGo, one(`act = l.confirmed(entry.Renewal, entry.Revision, l.e.now())`, `act = l.confirmed(l.renewals, entry.Revision, l.e.now())`),
		"natslock.TestFoundRenewalCountsFromItsOwnSending"},
	{"found-read-prolongs", "a look that finds the record in place prolongs the lease", "Only a compare-and-set grants",
		suspectGo, one(`k.moved(l) // as it should be`, `l.end = l.terms.end(l.e.now())
		k.moved(l)`),
		"natslock.TestLeaseNoRenew"},
	{"found-broken-as-renewal", "an own broken record passes for a renewal", "Answers",
		suspectGo, one(`case own && entry.Live() && entry.Status == StatusHeld && entry.Renewal > 0 && entry.Renewal <= l.renewals:`,
			`case own && entry.Live() && entry.Renewal > 0 && entry.Renewal <= l.renewals:`),
		"natslock.TestBreakOfUnheardRenewal"},
	{"found-broken-deleted", "the holder's client deletes its broken record while the holder still works", "Break",
		suspectGo, one(`case own && entry.Status == StatusBroken:`, `case own && entry.Deleted && entry.Status == StatusBroken:`),
		"natslock.TestBreakWaitsForTheHolder"},
	{"found-acquisition-as-own", "an acquisition record of its own that lands late passes for the lease", "Answers",
		suspectGo, one(`		act = l.lose(ErrLost, "its record is gone")
		lose := act
		act = func() { lose(); l.e.discard(l.spec.key, l.id, entry.Revision) }`, `		l.last = entry.Revision
		k.moved(l)`),
		"natslock.TestOldAttemptLandsUnderTheLease"},
	{"found-stranger-ignored", "a stranger's record in place of its own does not end the lease", "Answers",
		suspectGo, one(`	case entry.Live():
		act = l.lose(ErrLost, fmt.Sprintf("its record was replaced at revision %d", entry.Revision))`, `	case entry.Live():
		act = func() { _ = fmt.Sprint() }`),
		"natslock.TestBreakOverwritten"},
	{"found-deleted-ignored", "the deletion of its record does not end the lease", "Break",
		suspectGo, one(`act = l.lose(ErrLost, "its record was deleted")`, `k.moved(l)`),
		"natslock.TestBreakByHand/fixed"},
	{"watch-believed", "a notification alone ends the lease", "Break",
		suspectGo, one(`	l.suspect(ev.Record.Revision)
}`, `	act := l.lose(ErrLost, "told")
	go act()
}`),
		"natslock.TestBreakForgedNotification"},
	{"suspect-hint-again", "a hint above the record's revision is looked into again and again", "Acquire: the mutex",
		suspectGo, one(`if hint > revision {`, `if hint > entry.Revision {`),
		"natslock.TestForgedHintOnFixedLease"},
	{"watch-deaf", "a holder is not told of a break by the notification", "Break",
		suspectGo, one(`if l.state != Held || ev.Record.Revision <= l.last {`, `if l.state == Held || ev.Record.Revision <= l.last {`),
		"natslock.TestBreakTellsTheHolder"},
	{"bucket-remade-unnoticed", "leases outlive the bucket they were in", "Break",
		engineGo, one(`		e.keeper.loseAll(err.Error())`, ``),
		"natslock.TestHandleBucketMadeAgain"},
	{"bucket-never-verified", "the bucket is not looked at again", "The bucket",
		keeperGo, one(`if len(k.due) > 0 && now >= k.verify {`, `if len(k.due) > 0 && now >= k.verify && k.stopped {`),
		"natslock.TestHandleBucketDeleted"},
}
