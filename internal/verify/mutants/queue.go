package main

const (
	queueGo = "internal/lease/queue.go"
	listsGo = "internal/lease/lists.go"
)

// queueMutants weaken the queue: who is next, and that nobody is forgotten.
var queueMutants = []mutant{
	{"queue-by-revision", "whoever has renewed its place last is last", "Acquire: the mutex",
		listsGo, one(`cmp.Compare(a.TokenOrTicket(), b.TokenOrTicket())`, `cmp.Compare(a.Revision, b.Revision)`),
		"natslock.TestInspectQueueOrder"},
	{"queue-stale-list", "the queue is read from a state that need not contain the own place", "Acquire: the mutex",
		queueGo, one(`queue, err := a.e.waiters(a.ctx, pattern, place.token, from)`, `queue, err := a.e.waiters(a.ctx, pattern, 0, from)`),
		"natslock.TestStaleQueueList"},
	{"queue-stale-shared-list", "who shares a look at the queue gets one that need not contain its place", "Acquire: the mutex",
		listsGo, one(`s.min, s.from = max(s.min, revision), min(s.from, from)`, `s.min, s.from = max(s.min, 0), min(s.from, from)`),
		"natslock.TestStaleQueueList"},
	{"queue-everybody-first", "a waiter does not wait for those before it", "Acquire: the mutex",
		queueGo, one(`for pred >= 0 && !a.blocks(queue[pred]) {`, `for pred >= 0 {`),
		"natslock.TestFIFOOneReleaseWakesOneWaiter"},
	{"queue-gone-says-granted", "a waiter that gives up makes its successor first", "Acquire: the mutex",
		queueGo, one(`			place.leave(StatusGone)
		}
		if v.outcome`, `			place.leave(StatusGranted)
		}
		if v.outcome`),
		"natslock.TestGivingUpMakesNobodyFirst"},
	{"queue-jumper-says-granted", "a waiter granted out of turn makes its successor first", "Acquire: the mutex",
		queueGo, one(`a.place, a.placeStatus = place, StatusGone`, `a.place, a.placeStatus = place, StatusGranted`),
		"natslock.TestOutOfTurnMakesNobodyFirst"},
	{"queue-rubbish-has-a-place", "what cannot be read has a place in the queue", "Records",
		listsGo, one(`!entry.Unreadable && entry.Status == StatusWaiting {`, `!entry.Zero() {`),
		"natslock.TestCorruptQueue"},
	{"queue-no-backstop", "a waiter that hears nothing does not look by itself", "Acquire: the mutex",
		queueGo, one(`return b.place/3 + rand.N(b.place/30)`, `return time.Hour + rand.N(time.Second)`),
		"natslock.TestReleaseUnheard"},
	{"queue-no-recheck", "a waiter claims once, when it is first, and not again after waiting", "Acquire: the mutex",
		queueGo, []edit{
			{`					expect, waiting = a.look(ev.Record.Revision)
`, ``},
			{`				case recheck: // the answer to a claim proves the subscription again
					expect, waiting = 0, false
`, `				case recheck:
`},
			{`				} else {
					expect, waiting = a.look(0)
				}`, `				}`},
		},
		"natslock.TestFIFOOrder"},
	{"queue-forged-renewals", "each notification puts off what a waiter reads by itself", "Acquire: the mutex",
		queueGo, one(`				if due <= now {
					due = now.Add(back.next())
				}`, `				due = now.Add(back.next())`),
		"natslock.TestOverdueBehindForgedRenewals"},
	{"queue-forged-tombstone", "a waiter claims at the revision that a notification names", "Acquire: the mutex",
		queueGo, one(`expect, waiting = a.look(ev.Record.Revision)`, `expect, waiting = ev.Record.Revision, false`),
		"natslock.TestForgedTombstone"},
	{"queue-dead-unnoticed", "the end of a dead waiter's record moves nobody up", "Acquire: the mutex",
		queueGo, []edit{
			{`		} else if late = 0; w != nil {
			w.Track(entry.Record)
		}`, `		}`},
			{`return b.place/3 + rand.N(b.place/30)`, `return time.Hour + rand.N(time.Second)`},
		},
		"natslock.TestFIFOPredecessorDiesOlderThanTheQueue"},
	{"queue-dead-holder-unnoticed", "the end of a dead holder's record wakes nobody", "Acquire: the mutex",
		queueGo, []edit{
			{`				if w != nil {
					w.Track(a.holder.Record)
				} else if left > 0 {
					due = min(due, now.Add(left))
				}`, ``},
			{`return b.place/3 + rand.N(b.place/30)`, `return time.Hour + rand.N(time.Second)`},
		},
		"natslock.TestFIFOHolderDiesOlderThanTheQueue"},
	{"queue-old-sight", "what was seen of one key hides what happens to the next", "Acquire: the mutex",
		queueGo, []edit{
			{`s.key, s.ev, s.recheck = key, kvstore.Event{}, false`, `s.key, s.recheck = key, false`},
			{`	s.ev, s.recheck = kvstore.Event{}, false`, `	s.ev.Kind, s.recheck = 0, false`},
		},
		"natslock.TestFIFOPredecessorDiesOlderThanTheQueue"},
	{"queue-deafened", "a forged notification hides those that come after it", "Acquire: the mutex",
		queueGo, one(`	s.ev, s.recheck = kvstore.Event{}, false`, `	s.ev.Kind, s.recheck = 0, false`),
		"natslock.TestForgedRevisionDeafensNobody"},
	{"queue-paused-first", "a paused first waiter holds up the others for its TTL", "Acquire: the mutex",
		queueGo, one(`now.Sub(idle.since) >= idleFor+rank+rand.N(rank+1)`, `now.Sub(idle.since) >= time.Hour+rank+rand.N(rank+1)`),
		"natslock.TestFIFOIdleLockIsTakenOutOfTurn"},
	{"queue-place-gone", "a waiter whose place has ended goes on as if it had one", "Acquire: the mutex",
		queueGo, []edit{
			{`			if i < 0 {
				next = requeue`, `			if i < -1 {
				next = requeue`},
			{`queue[:i])`, `queue[:max(i, 0)])`},
		},
		"natslock.TestPlaceDeleted"},
	{"queue-place-believed", "whoever has the key of the predecessor's place is taken for the predecessor", "ARCHITECTURE.md, departures",
		queueGo, []edit{
			{`there = entry.Live() && entry.ID == pred.ID`, `there = entry.Live()`},
			{`			case ev.Kind == kvstore.Put && entryOf(ev.Record).ID != pred.ID:
				return relist, verdict{} // its tombstone was overtaken
`, ``},
		},
		"natslock.TestPlaceUsedAgain"},
	{"queue-place-used-anywhere", "the key of a place is used again where lists may show what it had before", "ARCHITECTURE.md, departures",
		queueGo, one(`if a.e.kv.Current() {`, `if a.e.kv != nil {`),
		"natslock.TestPlaceIsNewWhereListsLag"},
	{"queue-place-lives-long", "a waiter's place lives as long as the lock's TTL", "Acquire: the mutex",
		queueGo, one(`min(max(a.ttl, minPlaceTTL), maxPlaceTTL)`, `max(a.ttl, minPlaceTTL)`),
		"natslock.TestPlaceIsShort"},
	{"queue-place-left", "a waiter that gives up leaves its place", "Acquire: the mutex",
		queueGo, one(`			place.leave(StatusGone)
		}
		if v.outcome`, `			_ = place
		}
		if v.outcome`),
		"natslock.TestFIFOGivingUp"},
	{"queue-bypass-for-ever", "a client takes its own lock again past those who wait", "Acquire: the mutex",
		acquireGo, one(`case known.tombstone == 0 || known.unqueued:`, `case known.tombstone == 0 || known.unqueued || known.tombstone > 0:`),
		"natslock.TestFIFOReacquireStarvesNobody"},
	{"queue-passed-by-newcomer", "a newcomer that finds the lock free takes it past those who wait", "Acquire: the mutex",
		acquireGo, one(`case len(queue) > 0 || l.More:`, `case len(queue) < 0 && l.More:`),
		"rwlock.TestNewcomer"},
	{"queue-stale-for-newcomer", "a newcomer looks at the queue in a state that need not have the tombstone it met", "internal/lease/acquire.go, enter",
		acquireGo, one(`if a.e.kv.Alone() {`, `if a.e.kv.Alone() || revision > 0 {`),
		"rwlock.TestNewcomer/lagging"},
	{"enter-live", "a newcomer claims at the revision of a live record", "A live record is never overwritten",
		acquireGo, []edit{
			{`held := entry.Live() && !a.bid.mine(entry)`, `held := entry.Live() && entry.Zero()`},
		},
		"natslock.TestMessagesTryLockBusy"},
	{"queue-rest-unread", "a newcomer takes the part of a queue that it has read for all of it", "internal/lease/acquire.go, enter",
		acquireGo, one(`case len(queue) > 0 || l.More:`, `case len(queue) > 0:`),
		"natslock.TestNewcomerReadsAPart"},
	{"queue-part-is-all", "a waiter that finds nobody before it in a part of the queue is first", "internal/lease/lists.go, reach",
		queueGo, one(`case from > 0: // it is further back, if there is one`, `case from > 1<<62: // it is further back, if there is one`),
		"natslock.TestLongQueue"},
	{"queue-renewed-before", "a waiter follows the last one of a part of the queue, though others may be between", "internal/lease/lists.go, reach",
		queueGo, one(`case pred >= 0 && queue[pred].TokenOrTicket() >= from:`, `case pred >= 0:`),
		"natslock.TestLongQueue"},
	{"queue-shared-part", "who shares a look at the queue gets a smaller part than it wants", "internal/lease/lists.go, waiters",
		listsGo, one(`s.min, s.from = max(s.min, revision), min(s.from, from)`, `s.min, s.from = max(s.min, revision), max(s.from, from)`),
		"internal/lease.TestSharedLook"},
	{"queue-own-record-waited-for", "a waiter waits for its own late record", "ARCHITECTURE.md, departures",
		queueGo, one(`return b.cur != nil && e.Live() && e.of(b.cur.id) }`, `return b.cur != nil && e.Zero() && e.of(b.cur.id) }`),
		"natslock.TestOwnAttemptLandsWhileWaiting"},
}
