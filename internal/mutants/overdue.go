package main

const overdueGo = "internal/lease/overdue.go"

// overdueMutants weaken when a record counts as overdue, and what follows from it.
var overdueMutants = []mutant{
	{"overdue-no-slack", "a record is overdue as soon as its TTL is over", "Overdue",
		overdueGo, one(`e.Time.Add(e.Record.TTL+overdueSlack)`, `e.Time.Add(e.Record.TTL)`),
		"natslock.TestOverdue/holder/lock"},
	{"overdue-never", "nothing is ever overdue", "Overdue",
		overdueGo, one(`return e.Live() && !e.Unreadable`, `return false && !e.Unreadable`),
		"natslock.TestOverdue/holder/lock"},
	{"overdue-local-clock", "the local clock decides", "Overdue",
		overdueGo, one(`	st, err := e.kv.State(ctx, "")
	return err == nil && entry.overdue(st.Time), err`, `	_, err := e.kv.State(ctx, "")
	return err == nil, err`),
		"natslock.TestOverdueWrongClock"},
	{"overdue-unreadable", "a record that cannot be read can be overdue", "Overdue",
		overdueGo, one(`e.Live() && !e.Unreadable && e.Record`, `e.Live() && e.Record`),
		"natslock.TestOverdueUnreadable"},
	{"overdue-on-hearsay", "the times of a notification make a record overdue", "Overdue",
		queueGo, one(`					waiting = !a.bid.mine(*a.holder)`, `					expect, waiting = a.holder.Revision, !a.e.overdue(a.ctx, *a.holder)`),
		"natslock.TestOverdueForged"},
	{"overdue-claimed-later", "an overdue lock is claimed at the revision that it has by now", "Overdue",
		bidGo, one(`		v := b.cur.try(b.ctx, expect, b.blind)
`, `		v := b.cur.try(b.ctx, expect, b.blind)
		if v.outcome == busy && expect > 0 {
			v = b.cur.try(b.ctx, v.entry.Revision, b.blind)
		}
`),
		"natslock.TestOverdueRace"},
	{"overdue-reader-no-cas", "an overdue reader counts as gone though its deletion was refused", "Overdue",
		rwGo, one(`if a.e.deleteOverdue(ctx, entry) == nil {`, `if a.e.deleteOverdue(ctx, entry) == nil || true {`),
		"natslock.TestOverdueReaderRenews"},
	{"overdue-reader-stays", "a draining writer waits for an overdue reader", "Overdue",
		rwGo, one(`if entry.overdue(st.Time) {`, `if entry.overdue(st.Time.Add(-time.Hour)) {`),
		"natslock.TestOverdue/reader/write"},
	{"overdue-place-stays", "an overdue place holds up those behind it", "Overdue",
		overdueGo, one(`		if entry.overdue(st.Time) {
			err`, `		if entry.Zero() && entry.overdue(st.Time) {
			err`),
		"natslock.TestOverdue/waiter/try"},
	{"overdue-break-exact", "a fixed lease is broken for its rest exactly", "Overdue",
		"internal/lease/break.go", one(`serverTime.Sub(entry.Time)-overdueSlack`, `serverTime.Sub(entry.Time)`),
		"natslock.TestOverdueBreakOfFixedLease"},
	{"overdue-break-waits", "a break of an overdue record keeps others out for another TTL", "Overdue",
		"internal/lease/break.go", one(`if req.Immediately || entry.overdue(serverTime) {`, `if req.Immediately {`),
		"natslock.TestOverdueBreak"},
	{"overdue-not-shown", "an overdue record is shown like a live one", "Overdue",
		"internal/lease/view.go", one(`v.Holder.Overdue = entry.overdue(server)`, `v.Holder.Overdue = false`),
		"natslock.TestOverdueBreak"},
	{"follower-read-as-proof", "a follower takes an answer to a read for a proof of its subscription", "ARCHITECTURE.md, departures",
		queueGo, one(`			last, err = a.e.probe(a.ctx, pred.Key)`, `			entry, err = a.e.read(a.ctx, pred.Key, pred.Revision)
			last = entry.Revision`),
		"natslock.TestFollowerProbes"},
	{"drain-state-as-proof", "a draining writer takes the stream info for a proof of its subscription", "ARCHITECTURE.md, departures",
		rwGo, one(`				if !r.alone { // else`, `				if false { // else`),
		"natslock.TestDrainProbes"},
	{"place-short", "a place lives as short as a short TTL", "Acquire: the mutex",
		queueGo, one(`min(max(a.ttl, minPlaceTTL), maxPlaceTTL)`, `min(a.ttl, maxPlaceTTL)`),
		"natslock.TestPlaceOutlastsPause"},
	{"overdue-reader-no-answer", "a reader whose deletion got no answer is returned as the holder", "Answers",
		"internal/lease/once.go", one(`if readers, err = a.e.clear(ctx, readers); err != nil {`, `if readers, err = a.e.clear(ctx, readers); err != nil && len(readers) == 0 {`),
		"natslock.TestOverdueDeletionUnanswered/reader"},
	{"overdue-place-no-answer", "a place whose deletion got no answer counts as queued", "Answers",
		acquireGo, one(`case err != nil && a.req.Once:`, `case err != nil && a.req.Once && a.ctx.Err() != nil:`),
		"natslock.TestOverdueDeletionUnanswered/waiter"},
	{"place-left-once", "the deletion of a place that gets no answer is not sent again", "Acquire: the mutex",
		"internal/lease/release.go", one(`func() { retry(); end() })`, `func() { end() })`),
		"natslock.TestPlaceLeftUnanswered"},
	{"settled-is-kept", "the subscription of a claim that is settled is kept", "Answers",
		claimGo, one(`	if c.sighting != nil && c.settled() {`, `	if c.sighting != nil && len(c.attempts) == 0 {`),
		"natslock.TestMessagesGivingUp"},
}
