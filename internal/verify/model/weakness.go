package model

// weakness names a protocol rule that a scope leaves out, to show that the protocol needs the
// rule and that the model notices its absence.
type weakness string

const (
	proofOlderThanGate weakness = "a drain proven by an answer older than the gate write"
	proofAnyTime       weakness = "a drain proven by one answer, however late"
	proofWithHole      weakness = "a drain proven by the answers of a replica that is catching up"
	proofByOwnMargin   weakness = "a drain proven by one answer within half of the writer's own margin"
	unguardedJoin      weakness = "a join that is not guarded by the gate"
	joinAtLiveGate     weakness = "a join at the revision of a live gate"
	brokenReaderDead   weakness = "a broken reader taken for dead"
	sharingRestarted   weakness = "sharing that resumes after the release was sent"
	closeDeletes       weakness = "a Close that deletes the records of work that is still stopping"

	validityFromAnswer   weakness = "validity counted from the answer"
	lateAnswer           weakness = "an answer accepted after the end of the validity"
	unconditionalDelete  weakness = "an unconditional deletion"
	grantedWhenOver      weakness = "an earlier attempt granted when the claim is over"
	adoptedAsNewest      weakness = "a found record counted from the newest attempt"
	brokenAdopted        weakness = "a client's own broken record adopted"
	renewalAtZero        weakness = "a renewal that expects nothing"
	brokenTooShort       weakness = "a broken record that lives shorter than the lease"
	shorterNotHeeded     weakness = "a requested shorter TTL ignored until it is confirmed"
	notificationBelieved weakness = "a deletion based on a notification"

	handsOverInside  weakness = "a lock handed over before the work under it has ended"
	handsOverLate    weakness = "a lock handed over by a confirmation that came after the end of its validity"
	giverCleansUp    weakness = "a giver that deletes its record when it gets no answer"
	adopterCleansUp  weakness = "an adopter that puts a tombstone where its open attempt expects the record"
	adoptsUnderOneID weakness = "an adoption under the id of the giver"
	adoptsUnfixed    weakness = "a record adopted that its holder renews"
	adoptsAnything   weakness = "an adoption of a lock that is free, or whose record is overdue"
	adoptsBroken     weakness = "a broken record adopted"
	adoptsLate       weakness = "an adoption that counts after the end of the record that it has replaced"

	noBackstop      weakness = "waiters without timers"
	placeBelieved   weakness = "any client with the key of the predecessor's place taken for the predecessor"
	staleQueue      weakness = "a queue listed from a state without one's own ticket"
	readersBefore   weakness = "a reader granted with readers ahead of it, whose tombstone says that there were none"
	newcomerJoins   weakness = "a newcomer reader past the queue"
	newcomerSeesOld weakness = "a newcomer that sees the queue as it was before the lock became free"

	partWithGaps      weakness = "a truncated part believed to have no gaps between its places"
	partFromBeginning weakness = "a part believed to begin with the queue"
	partBeginBefore   weakness = "a renewed place from before the start of a part kept, with no place after it"
	knownOnly         weakness = "a waiter first when the places that it knows have ended"

	evictsUngranted   weakness = "the head's place deleted without a grant"
	evictsBehind      weakness = "the predecessor's place deleted, which is not the head's"
	evictsAtOnce      weakness = "a lock taken out of turn, and the head's place deleted, by one read"
	evictsAnyRevision weakness = "the head's place deleted at a later revision than the one read"
	windowOverGap     weakness = "a lock assumed unchanged between two reads that are far apart"

	keptForever           weakness = "an overdue record that no client claims or deletes"
	overdueByOtherTTL     weakness = "a record overdue by another record's TTL"
	overdueByAcquisition  weakness = "a renewed record overdue by the time of its acquisition"
	overdueByReplaced     weakness = "a broken record overdue by the time of the record that it replaced"
	removedEarly          weakness = "a record that an operator removes when its TTL has ended by one server's clock"
	overdueKey            weakness = "a key believed overdue, claimed at a later revision"
	claimedOnNotification weakness = "a live record claimed on a notification"
	brokenForTheRest      weakness = "a fixed lease broken for exactly its remaining time"
	overdueByReplica      weakness = "a reader taken for dead by its time on a lagging replica, without a write"
	overdueAsReadOnce     weakness = "a reader taken for dead by its record as read once, without a write"
	overduePlaceKept      weakness = "an overdue place that no waiter deletes"
	overduePlaceRenewed   weakness = "a place believed again after a late renewal"
)
