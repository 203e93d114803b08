package history

import (
	"cmp"
	"strings"
	"time"

	"github.com/natslock/locks/natslock/admin"
)

// Moment is a point in a history. Seq orders moments with equal At.
type Moment struct {
	At  time.Duration `json:"at"`
	Seq int64         `json:"seq"`
}

// never is later than any other time.
const never = time.Duration(1<<63 - 1)

func (m Moment) zero() bool { return m == Moment{} }

func (m Moment) compare(o Moment) int {
	return cmp.Or(cmp.Compare(m.At, o.At), cmp.Compare(m.Seq, o.Seq))
}

// Action is what an operation does.
type Action string

// The actions.
const (
	Lock     Action = "lock"
	Try      Action = "try"
	Unlock   Action = "unlock"
	Extend   Action = "extend"
	Use      Action = "use" // uses the resource that the lock guards
	Break    Action = "break"
	BreakNow Action = "break now"
	Delete   Action = "delete" // deletes a record by hand
	Remake   Action = "remake" // re-creates the bucket
)

// Outcome is the result of an operation.
type Outcome string

// The outcomes. A Pending operation had not returned when the history ended.
const (
	Pending Outcome = ""
	OK      Outcome = "ok"
	Refused Outcome = "refused" // refused because of the lock's state, or by the resource
	GaveUp  Outcome = "gave up" // an acquire whose time ran out
	Lost    Outcome = "lost"    // an unlock or extension of a lock that had been lost
	Broken  Outcome = "broken"  // an unlock or extension of a lock that had been broken
	Unknown Outcome = "unknown" // no usable answer
)

// Op is one operation.
type Op struct {
	Client string `json:"client"`
	// Lock is the key of the mutex or of the reader-writer lock's gate. For a semaphore it is
	// the slot's key, or the prefix that all slots share if there was no grant.
	Lock    string `json:"lock,omitempty"`
	Shared  bool   `json:"shared,omitempty"`
	Permits int    `json:"permits,omitempty"` // the semaphore's permits, as far as the caller knows
	// Cohort names the acquire's options that decide which goroutines of the client may share
	// its lease. [Alone] means that none may.
	Cohort  string  `json:"cohort,omitempty"`
	Do      Action  `json:"do"`
	Call    Moment  `json:"call"`
	Return  Moment  `json:"return"` // zero if pending
	Outcome Outcome `json:"outcome"`
	Err     string  `json:"err,omitempty"`
	// Token is the token of the grant, of the holder that caused a refusal, or of the holder
	// being unlocked or broken.
	Token uint64 `json:"token,omitempty"`
	// ID is the holder's id, for operations on a lock that was granted. See [claimOf].
	ID string `json:"id,omitempty"`
	// Bounded reports whether the acquire's context could end.
	Bounded bool     `json:"bounded,omitempty"`
	Tickets []Ticket `json:"tickets,omitempty"`
	// Key and Revision describe a deletion by hand. For a re-created bucket, Revision is its
	// first sequence.
	Key      string `json:"key,omitempty"`
	Revision uint64 `json:"revision,omitempty"`
}

func (o *Op) acquires() bool { return o.Do == Lock || o.Do == Try }

// end returns when the operation ended, or never if it is pending.
func (o *Op) end() time.Duration {
	if o.Return.zero() {
		return never
	}
	return o.Return.At
}

// Ticket is a place in a queue.
type Ticket struct {
	ID     string        `json:"id"`
	Ticket uint64        `json:"ticket"`
	At     time.Duration `json:"at"` // when its owner learned about it
}

// Alone is the cohort of a goroutine that shares its lease with no other goroutine.
const Alone = "alone"

// Hold is a holder's belief that it has a lock. The belief lasts from the return of the acquire
// until the call to Unlock, the loss, or the end of the last validity.
type Hold struct {
	Client string        `json:"client"`
	Lock   string        `json:"lock"`
	Shared bool          `json:"shared,omitempty"`
	ID     string        `json:"id"`
	Token  uint64        `json:"token"`
	Cohort string        `json:"cohort,omitempty"`
	Asked  Moment        `json:"asked"` // the acquire's call
	From   Moment        `json:"from"`
	Until  time.Duration `json:"until"`
	// Confirmed lists the ends of validity that the holder saw.
	Confirmed []Confirmation `json:"confirmed,omitempty"`
	// Unlock is when Unlock was called, and Unlocked is when it returned. Each is zero if the
	// event did not happen or was not observed.
	Unlock   Moment `json:"unlock"`
	Unlocked Moment `json:"unlocked"`
	// Released reports whether Unlock returned nil.
	Released bool `json:"released,omitempty"`
	// Ended is when the lock's context ended, and Cause is why.
	Ended Moment `json:"ended"`
	Cause string `json:"cause,omitempty"`
	// Left reports whether the context ended as it does for a lock that was unlocked.
	Left bool `json:"left,omitempty"`
	// Unknown reports whether the client did not know the token's revision. It is recorded only
	// for a client whose store is wrapped by [Recorder.Over].
	Unknown bool `json:"unknown,omitempty"`
}

// Confirmation is the end of a validity, and when the holder saw it.
type Confirmation struct {
	At    time.Duration `json:"at"`
	Until time.Duration `json:"until"`
}

// end returns when the belief ends. A belief that expires ends before everything recorded at
// the same time.
func (h *Hold) end() Moment {
	if !h.Unlock.zero() && h.Unlock.At <= h.Until {
		return h.Unlock
	}
	return Moment{At: h.Until}
}

// claimOf returns the id of a holder's claim. The claim's first holder has that id, and later
// holders have it with a number appended.
func claimOf(id string) string {
	claim, _, _ := strings.Cut(id, ".")
	return claim
}

func (h *Hold) claim() string { return claimOf(h.ID) }

// local reports whether the client granted the lock on its own, under a claim that an earlier
// holder had made.
func (h *Hold) local() bool { return h.claim() != h.ID }

// conflicts reports whether the two holders exclude each other.
func (h *Hold) conflicts(o *Hold) bool { return h.Lock == o.Lock && !(h.Shared && o.Shared) }

// Entry is a change to the stream.
type Entry struct {
	Key      string        `json:"key,omitempty"`
	Revision uint64        `json:"revision"`
	At       time.Duration `json:"at"`
	TTL      time.Duration `json:"ttl"`
	Deleted  bool          `json:"deleted,omitempty"`
	// Remade reports that the bucket was re-created, with sequences starting at Revision.
	Remade bool `json:"remade,omitempty"`

	// The fields below come from the record's value.
	ID      string        `json:"id,omitempty"`
	Owner   string        `json:"owner,omitempty"` // the client's id
	Status  int           `json:"status,omitempty"`
	Renewal uint64        `json:"renewal,omitempty"`
	Token   uint64        `json:"token,omitempty"`
	Grants  uint64        `json:"grants,omitempty"`
	Shared  bool          `json:"shared,omitempty"`
	Since   time.Duration `json:"since,omitempty"` // when the attempt began, rounded down to milliseconds
}

// ends returns when the server may remove the record.
func (e Entry) ends() time.Duration {
	if e.TTL == never {
		return never
	}
	return e.At + e.TTL
}

// Disturbance is a period in which a client could not work properly. A cut link lasts for some
// time, whereas an injected fault is instantaneous.
type Disturbance struct {
	Client string        `json:"client"` // "" for all clients
	What   string        `json:"what"`
	From   time.Duration `json:"from"`
	Until  time.Duration `json:"until"`
}

// PlaceForged is the [Disturbance] of a client that got a forged notification about a place in
// a queue.
const PlaceForged = "place forged"

// History is a record of operations, beliefs and changes to the stream.
type History struct {
	// Repeat is the command that reproduces such a history.
	Repeat string        `json:"repeat,omitempty"`
	Began  time.Time     `json:"began"`
	Ended  time.Duration `json:"ended"`
	// TTL is the longest TTL of any renewed lease.
	TTL   time.Duration `json:"ttl,omitempty"`
	Ops   []*Op         `json:"ops"`
	Holds []*Hold       `json:"holds"`
	// Stream is in revision order. Tapped reports whether it was recorded.
	Stream []Entry `json:"stream,omitempty"`
	// Turn is how long after its grant a cohort may serve goroutines that came after a foreign
	// place was known. If it is zero, clients serve goroutines in exact order.
	Turn time.Duration `json:"turn,omitempty"`
	// Notice is the longest that a client may be unaware of a foreign place. The default is
	// [silence].
	Notice time.Duration `json:"notice,omitempty"`
	// Calm reports that nothing fails.
	Calm   bool `json:"calm,omitempty"`
	Tapped bool `json:"tapped,omitempty"`
	// Lossy reports that entries of the stream may be missing, for example because a leader
	// steps down between storing a write and sending the notification. A record is then known
	// to be alive at some time only if the stream has entries for its key both before and after
	// that time.
	Lossy        bool           `json:"lossy,omitempty"`
	Disturbances []Disturbance  `json:"disturbances,omitempty"`
	Faults       map[string]int `json:"faults,omitempty"` // the number of injected faults of each kind
	Left         []string       `json:"left,omitempty"`   // records and the like that should have been removed by the end
}

// gateKey returns the key that names a lock.
func gateKey(kind admin.Kind, name string) string {
	switch kind {
	case admin.KindRW:
		return "rw." + name
	case admin.KindSemaphore:
		return "sem." + name
	}
	return "lock." + name
}

// lockOf returns the lock to which a key belongs, and the key's role. The role is "lock" or
// "rw" for the holder, "sem" for a slot, "read" for a reader, and "wait", "rwait" or "swait"
// for a place in a queue. Each slot is a separate lock.
func lockOf(key string) (lock, role string) {
	role, rest, _ := strings.Cut(key, ".")
	switch role {
	case "wait", "rwait", "swait", "read":
		if i := strings.LastIndexByte(rest, '.'); i >= 0 {
			rest = rest[:i]
		}
		switch role {
		case "wait":
			return "lock." + rest, role
		case "swait":
			return "sem." + rest, role
		}
		return "rw." + rest, role
	}
	return key, role
}
