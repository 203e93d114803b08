package main

const (
	claimGo    = "internal/lease/claim.go"
	bidGo      = "internal/lease/bid.go"
	recordGo   = "internal/lease/record.go"
	validityGo = "internal/lease/validity.go"
)

// claimMutants weaken how an attempt becomes a lease, and what becomes of those
// that do not.
var claimMutants = []mutant{
	{"claim-validity-from-answer", "validity counts from the answer, not from the sending", "A lease and its validity",
		claimGo, one(`end: a.terms.end(a.sent), last:`, `end: a.terms.end(c.e.now()), last:`),
		"natslock.TestValidityCountsFromSending/lock_take_700ms"},
	{"claim-no-margin", "validity lasts for the whole TTL", "A lease and its validity",
		validityGo, one(`sent.Add(t.ttl - t.margin) }`, `sent.Add(t.ttl) }`),
		"natslock.TestValidityCountsFromSending/lock_take_300ms"},
	{"claim-no-margin-floor", "the margin of a long lease is less than a thousandth", "A lease and its validity",
		validityGo, one(`margin: max(m, ttl/marginFloor)}`, `margin: m}`),
		"natslock.TestLeaseSafetyMargin"},
	{"claim-ttl-truncated", "a fraction of a second is cut off the TTL", "A lease and its validity",
		validityGo, one(`return (d + time.Second - 1) / time.Second * time.Second`, `return max(d/time.Second*time.Second, time.Second)`),
		"natslock.TestLeaseFractionIsRoundedUp"},
	{"claim-until-too-short", "a lease until a given time has no margin left at its end", "A lease and its validity",
		validityGo, one(`if t.ttl-t.margin >= d {`, `if t.ttl >= d {`),
		"natslock.TestLeaseUntil"},
	{"claim-late-answer", "an acknowledgement after the end of its own validity is a grant", "A lease and its validity",
		claimGo, one(`if now := c.e.now(); max(at, now) >= a.terms.end(a.sent) {`, `if c.e.now() < at {`),
		"natslock.TestFirstAnswerTooLate"},
	{"claim-late-record-stays", "the record of a late acknowledgement is left to its TTL", "A lease and its validity",
		claimGo, one(`>= a.terms.end(a.sent) {
		c.e.discard(c.spec.key, c.id, revision)`, `>= a.terms.end(a.sent) {`),
		"natslock.TestLateAnswerCleansUp"},
	{"claim-tokens-backwards", "a token below those already seen is granted", "What is promised",
		claimGo, one(`if revision <= a.floor {`, `if revision == 0 {`),
		"natslock.TestTokensGoBackwards"},
	{"claim-adopt-newest", "a record found counts from the sending of the newest attempt", "Answers",
		claimGo, one(`return c.take(entry.Attempt, entry.Revision, c.e.now()), true`, `return c.take(newest, entry.Revision, c.e.now()), true`),
		"natslock.TestAdoptedCountsFromItsOwnSending"},
	{"claim-adopt-late", "a record found after the end of its validity is adopted", "Answers",
		claimGo, one(`if now := c.e.now(); max(at, now) >= a.terms.end(a.sent) {`, `if now := c.e.now(); n == len(c.attempts) && max(at, now) >= a.terms.end(a.sent) {`),
		"natslock.TestAdoptedTooLate"},
	{"claim-adopt-broken", "an own broken record is adopted", "Answers",
		claimGo, one(`case entry.Status == StatusBroken:
			// Never`, `case entry.Status == StatusGone:
			// Never`),
		"natslock.TestBreakAgainstLateAnswer"},
	{"claim-adopt-forged", "a record with the claim's id and an attempt it never made is adopted", "Answers",
		claimGo, []edit{
			{`case !c.open(entry.Attempt):`, `case entry.Attempt > 1<<20:`},
			{`return c.take(entry.Attempt, entry.Revision, c.e.now()), true`, `return c.take(min(max(entry.Attempt, 1), newest), entry.Revision, c.e.now()), true`},
		},
		"natslock.TestForgedAttempt"},
	{"claim-adopt-stranger", "any live record found is adopted", "Answers",
		claimGo, one(`case !entry.of(c.id):
			return verdict{outcome: busy`, `case entry.Status == StatusWaiting:
			return verdict{outcome: busy`),
		"natslock.TestHeldIsHeld"},
	{"claim-read-as-grant", "a refused claim that reads the lock as free takes that for a grant", "Only a compare-and-set grants",
		claimGo, one(`case !entry.Live():
			return verdict{outcome: free, entry: entry}, true`, `case !entry.Live():
			return c.take(newest, entry.Revision, c.e.now()), true`),
		"natslock.TestFreeIsNotGranted"},
	{"claim-zero-as-grant", "a refusal that names no record is taken for a grant", "Only a compare-and-set grants",
		claimGo, one(`if conflict.Last == 0 {
			return verdict{outcome: free}, true`, `if conflict.Last == 0 {
			return c.take(newest, c.e.highest.Load()+1, c.e.now()), true`),
		"natslock.TestFreeIsNotGranted"},
	{"claim-silence-as-grant", "an attempt without an answer whose record is read is granted as of now", "Only a compare-and-set grants",
		claimGo, one(`return verdict{outcome: again, err: fmt.Errorf("%w: no answer within %v", ErrUnavailable, waited)}`,
			`if entry, err := c.e.read(ctx, c.spec.key, 0); err == nil && entry.Live() {
					return verdict{outcome: granted, n: n, revision: entry.Revision}
				}
				return verdict{outcome: again, err: fmt.Errorf("%w: no answer within %v", ErrUnavailable, waited)}`),
		"natslock.TestForgedSighting"},
	{"claim-in-flight-as-held", "a write in flight (10164) is taken for a holder", "Answers",
		claimGo, one(`	default:
		return verdict{outcome: again, err: err}, true
	}`, `	case errors.Is(err, kvstore.ErrInFlight):
		return verdict{outcome: busy}, true
	default:
		return verdict{outcome: again, err: err}, true
	}`),
		"natslock.TestInFlightIsNotHeld/Lock"},
	{"claim-refusal-read-stale", "a refusal is interpreted by a read older than it", "Answers",
		claimGo, one(`entry, err := c.e.read(ctx, key, conflict.Last)`, `entry, err := c.e.read(ctx, key, 0)`),
		"natslock.TestRefusalIsReadUpOn"},
	{"claim-over-answer-kept", "the record of an acknowledgement to a claim that is over is left", "Answers",
		claimGo, one(`discard := late && a.Err == nil && n != c.granted`, `discard := false`),
		"natslock.TestClaimAtZeroLandsLate/told_by_the_answer"},
	{"claim-over-sighting-ignored", "the sighting of a record of a claim that is over is ignored", "Answers",
		claimGo, one(`unwanted := c.over && entry.of(c.id)`, `unwanted := !c.over && entry.of(c.id)`),
		"natslock.TestClaimAtZeroLandsLate/told_by_the_notification"},
	{"claim-sighting-believed", "a notification alone leads to a deletion", "Answers",
		claimGo, one(`err == nil && e.of(c.id) && e.Live() && e.Renewal == 0 && e.Attempt != c.granted {`, `err == nil {`),
		"natslock.TestForgedSighting"},
	{"claim-deposed-refusal", "what a deposed leader refused and another applied is taken for a stranger's", "Answers",
		claimGo, one(`(!c.attempts[n-1].answered || c.attempts[n-1].doubtful)`, `!c.attempts[n-1].answered`),
		"natslock.TestClaimRefusedByDeposedLeader"},
	{"claim-over-granted", "an attempt that was answered before the claim was over is granted after it", "Answers",
		bidGo, one(`case spoilt:
			b.close()`, `case spoilt:
			_ = b.cur`),
		"natslock.TestBreakAgainstLateAnswer"},
	{"claim-given-up-takes-all", "a claim that was given up deletes whatever is in its way", "Answers",
		claimGo, one(`err == nil && !(entry.of(c.id) && entry.Live())`, `err == nil && !entry.Live()`),
		"natslock.TestForgedSighting"},
	{"claim-given-up-lets-land", "what a given-up attempt expects is not taken away from it", "Answers",
		claimGo, one(`		if !givenUp {
			return
		}`, `		if givenUp || !givenUp {
			return
		}`),
		"natslock.TestGivenUpDoesNotLand"},
	{"claim-granted-haunted", "the late answer to an adopted attempt deletes its record", "Answers",
		claimGo, []edit{
			{`discard := late && a.Err == nil && n != c.granted`, `discard := late && a.Err == nil`},
			{`	if adopted != nil {
		adopted()
	}`, `	_ = adopted`},
		},
		"natslock.TestAdoptedCountsFromItsOwnSending"},
	{"claim-unguarded-join", "a reader's join is not conditional on the gate", "Acquire: the reader-writer lock",
		claimGo, one(`Expect: expect, Guard: c.guard, TTL: t.ttl}`, `Expect: expect, TTL: t.ttl}`),
		"rwlock.TestOneShot"},
	{"claim-join-at-live-gate", "a refused join is repeated at the sequence of a live gate", "Acquire: the reader-writer lock",
		claimGo, one(`case !entry.Live():
			return verdict{outcome: free, entry: entry}, true`, `case !entry.Live(), c.guard != "":
			return verdict{outcome: free, entry: entry}, true`),
		"rwlock.TestJoinMeetsWriter"},
	{"claim-join-same-id", "a join without an answer is repeated under the same id", "Acquire: the reader-writer lock",
		bidGo, one(`b.cur.guard != "" && !errors.Is`, `b.cur.guard == "" && b.once && !errors.Is`),
		"rwlock.TestRepeatedJoin"},
	{"record-unreadable-is-free", "a record that cannot be read holds nothing", "Records",
		recordGo, one(`return !e.Zero() && !e.Deleted }`, `return !e.Zero() && !e.Deleted && !e.Unreadable }`),
		"natslock.TestCorruptRecord"},
	{"record-any-version", "a record of another version is read as one of ours", "Records",
		recordGo, one(`if b.Version != recordVersion || b.ID == ""`, `if b.ID == ""`),
		"natslock.TestCorruptRecord"},
	{"record-any-status", "a record with an unknown status is read", "Records",
		recordGo, one(`b.Status < StatusHeld || b.Status > StatusGranted ||`, ``),
		"natslock.TestCorruptRecord"},
	{"record-no-id", "a record without an id is read as somebody's", "Records",
		recordGo, one(`b.ID == "" || `, ``),
		"natslock.TestCorruptRecord"},
}
