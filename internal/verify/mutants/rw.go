package main

const (
	rwGo    = "internal/lease/rw.go"
	shareGo = "internal/lease/share.go"
)

// rwMutants weaken the reader-writer lock: the gate, the drain, the queue's rule,
// and the sharing of leases.
var rwMutants = []mutant{
	{"drain-skipped", "a writer that has the gate does not wait for the readers", "Acquire: the reader-writer lock",
		acquireGo, one(`if v = a.drain(l); v.outcome == 0 {`, `if v = (verdict{}); v.outcome == 0 {`),
		"rwlock.TestReadersAndWriters"},
	{"drain-older-than-gate", "an answer from before the gate's write proves that nobody reads", "Acquire: the reader-writer lock",
		rwGo, one(`r.knows = st.LastRevision >= r.revision && `, `r.knows = r.revision > 0 && `),
		"rwlock.TestNoProof/older_than_the_gate_by_one"},
	{"drain-without-leader", "the answer of a server that knows of no leader proves that nobody reads", "Acquire: the reader-writer lock",
		rwGo, one(`st.LastRevision >= r.revision && st.Leader != ""`, `st.LastRevision >= r.revision`),
		"rwlock.TestNoProof/without_a_leader"},
	{"drain-one-answer", "on several replicas one answer proves that nobody reads", "ARCHITECTURE.md, departures",
		rwGo, one(`		case nobody && r.alone:`, `		case nobody && (r.alone || r.revision > 0):`),
		"rwlock.TestDeposedLeader"},
	{"drain-late", "two answers of any age prove that nobody reads", "ARCHITECTURE.md, departures",
		rwGo, one(`if r.at.Sub(first.sent) < proofWindow {`, `if r.at > first.sent {`),
		"rwlock.TestTwoAnswers"},
	{"drain-window", "two answers may take longer than the shortest lease lasts", "ARCHITECTURE.md, departures",
		rwGo, one(`proofWindow = MinTTL * 4 / 5`, `proofWindow = MinTTL * 6 / 5`),
		"rwlock.TestTwoAnswers"},
	{"drain-from-first-answer", "the age of a proof counts from its first answer", "ARCHITECTURE.md, departures",
		rwGo, one(`if r.at.Sub(first.sent) < proofWindow {`, `if r.at.Sub(first.at) < proofWindow {`),
		"rwlock.TestTwoAnswers"},
	{"drain-from-confirmation", "the age of a proof counts from the gate's acknowledgement", "Acquire: the reader-writer lock",
		rwGo, one(`r.sent, r.revision = l.confirmation()`, `_, r.revision = l.confirmation()
	r.sent = a.e.now()`),
		"rwlock.TestProofCountsFromTheGateWrite"},
	{"drain-without-renewal", "two answers prove it without an acknowledged gate write between them", "ARCHITECTURE.md, departures",
		rwGo, one(`			if l.confirm(ctx) == nil {
				_, renewed = l.confirmation()
			}`, `			_ = l.confirm(ctx)
			_, renewed = l.confirmation()`),
		"rwlock.TestCutOffIsNotSlow"},
	{"drain-error-as-nobody", "an error in place of the list of readers is an empty list", "Acquire: the reader-writer lock",
		rwGo, one(`	r.at = a.e.now()
	if err != nil {
		return roll{}, err
	}`, `	r.at = a.e.now()
	if err != nil {
		return roll{knows: true, alone: true}, nil
	}`),
		"rwlock.TestNoProof/an_error"},
	{"drain-not-found-as-dead", "a reader that is listed and not found is dead", "ARCHITECTURE.md, departures",
		rwGo, one(`r.live = append(r.live, Entry{}) // a replica lags, or it has just expired: ask again`, ``),
		"rwlock.TestNoProof/listed,_and_not_found_by_a_replica_that_lags"},
	{"drain-unread-as-dead", "a reader that is listed and cannot be read is dead", "Acquire: the reader-writer lock",
		rwGo, one(`		default:
			return roll{}, err
		}`, `		default:
			d.gone[key] = true
		}`),
		"rwlock.TestNoProof/listed,_and_not_to_be_read"},
	{"drain-broken-as-dead", "a broken reader is dead", "Acquire: the reader-writer lock",
		rwGo, one(`case err == nil && rec.Deleted:`, `case err == nil && (rec.Deleted || entryOf(rec).Status == StatusBroken):`),
		"rwlock.TestBrokenReaderIsListed"},
	{"drain-read-as-proof", "a list from any replica proves that nobody reads", "Only a compare-and-set grants",
		rwGo, one(`st, err := a.e.kv.State(ctx, a.readerKey("*"))`, `l2, err := a.e.kv.List(ctx, a.readerKey("*"), 0)
	st := kvstore.State{LastRevision: r.revision, Leader: "-", Replicas: 1}
	for _, rec := range l2.Records {
		st.Keys = append(st.Keys, rec.Key)
	}`),
		"rwlock.TestListIsNoProof"},
	{"drain-foreign-as-dead", "what cannot be read among the readers is nobody", "Records",
		rwGo, one(`case err == nil && rec.Deleted:`, `case err == nil && (rec.Deleted || entryOf(rec).Unreadable):`),
		"rwlock.TestForeignReader"},
	{"drain-gate-lost", "a writer is granted although its gate was lost while it drained", "Acquire: the reader-writer lock",
		rwGo, one(`		if _, _, cause := l.Status(); cause != nil {
			return verdict{outcome: spoilt}
		}`, ``),
		"rwlock.TestGateLostInTheDrain"},
	{"drain-unheard", "a writer that hears nothing of the readers does not look by itself", "Acquire: the reader-writer lock",
		rwGo, one(`		pause := back.next()
		overdue := false`, `		pause := time.Hour + 0*back.next()
		overdue := false`),
		"rwlock.TestDrainUnheard"},
	{"drain-farewell-unread", "a writer that heard a farewell reads the reader's record in any state", "ARCHITECTURE.md, departures",
		rwGo, one(`rec, err := a.e.kv.Get(ctx, key, d.take(key))`, `rec, err := a.e.kv.Get(ctx, key, 0*d.take(key))`),
		"rwlock.TestDrainByLaggingReplica"},
	{"rw-reader-passes-writer", "a reader waits for nobody", "Acquire: the reader-writer lock",
		rwGo, one(`return !a.reads() || Mode(earlier.Mode) == Exclusive`, `return !a.reads()`),
		"rwlock.TestLine"},
	{"rw-writer-passes-readers", "a writer waits for earlier writers only", "Acquire: the reader-writer lock",
		rwGo, one(`return !a.reads() || Mode(earlier.Mode) == Exclusive`, `return Mode(earlier.Mode) == Exclusive`),
		"rwlock.TestWriterBehindSlowReader"},
	{"rw-first-by-predecessor", "a writer is first when its immediate predecessor was granted", "Acquire: the reader-writer lock",
		rwGo, one(`a.shortcut = false`, `a.shortcut = true`),
		"rwlock.TestWriterBehindSlowReader"},
	{"rw-try-stalls", "a one-shot writer takes the gate over readers", "Acquire: the mutex",
		acquireGo, one(`if reader, ok := a.currentReader(); ok {`, `if reader, ok := a.currentReader(); ok && reader.Zero() {`),
		"rwlock.TestOneShot"},
	{"rw-mixed-kinds", "one name is used for both kinds of lock by one client", "api.md, rwlock",
		nameGo, one(`if was != kind {`, `if was > RW {`),
		"rwlock.TestMixedKinds"},
	{"share-after-release", "a lease is shared whose release is on its way", "Acquire: the reader-writer lock",
		shareGo, []edit{
			{`	g.share.closed = true
	if r := s.m[g.share.gate]; r != nil && r.open == g.share {
		r.open = nil
	}
	return true`, `	return true`},
			{`	ended := func() {
		s.close(sh)`, `	ended := func() {`},
			{`fit := sh.host.state == Held && sh.host.renewals == 0 && e.now() < min(sh.until, sh.host.end)`, `fit := sh.host.renewals == 0 && e.now() < sh.until`},
		},
		"rwlock.TestReleasedIsNotShared"},
	{"share-counts-twice", "a reader that was lost, and then released, is two that have gone", "Acquire: the reader-writer lock",
		"internal/lease/lease.go", one(`	l.watch, l.sent, l.extending, l.onEnd, l.watchAt = nil, nil, nil, nil, 0`, `	l.watch, l.sent, l.extending, l.watchAt = nil, nil, nil, 0`),
		"rwlock.TestLostReaderCountsOnce"},
	{"share-behind-gate", "a lease is shared although a gate was seen", "Acquire: the reader-writer lock",
		shareGo, one(`if ev.Kind == kvstore.Put || ev.Kind == kvstore.Recheck {`, `if ev.Kind == kvstore.Expired {`),
		"rwlock.TestSharing"},
	{"share-behind-own-gate", "a lease is shared although this client itself takes the gate", "Acquire: the reader-writer lock",
		shareGo, one(`if r := s.m[gate]; r != nil && r.open != nil {`, `if r := s.m[gate]; r != nil && r.open != nil && gate == "" {`),
		"rwlock.TestOwnWriterEndsSharing"},
	{"share-after-renewal", "a lease is shared after it was renewed", "Acquire: the reader-writer lock",
		shareGo, one(`sh.host.state == Held && sh.host.renewals == 0 && `, `sh.host.state == Held && `),
		"rwlock.TestSharingEnds"},
	{"share-for-ever", "a lease is shared at any age", "Acquire: the reader-writer lock",
		shareGo, []edit{{`sh.host.renewals == 0 && e.now() < min(sh.until, sh.host.end)`, `e.now() < sh.host.end`}},
		"rwlock.TestSharingEnds"},
	{"share-last-third", "a lease that is not renewed early is shared to its end", "Acquire: the reader-writer lock",
		shareGo, one(`e.now() < min(sh.until, sh.host.end)`, `e.now() < sh.host.end`),
		"rwlock.TestSharingEnds"},
	{"share-first-leaves", "the first guest that leaves releases the lease of all", "Acquire: the reader-writer lock",
		shareGo, one(`	if g.share.guests > 0 {
		return false
	}`, ``),
		"rwlock.TestReleasedIsNotShared"},
	{"share-leaver-speaks", "a guest that has left still speaks for the lease", "Ending",
		shareGo, one(`	if g.gone.Load() {
		return Released, 0, g.end()
	}`, ``),
		"rwlock.TestGuests"},
}
