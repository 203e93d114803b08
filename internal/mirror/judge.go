package mirror

import (
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// Condition says how far a mirror's copy of the locks can be trusted.
type Condition int

const (
	// Stale means that the copy may lack changes, or that there is no copy yet.
	Stale Condition = iota
	// Live means that the copy is complete, a leader replies, and the bucket is fit. A lock that is not in the copy
	// is free.
	Live
	// NoLeader means that no server confirms writes or reads. Clients get no locks and lose the ones they hold.
	NoLeader
	// Unfit means that clients do not grant locks in the bucket, or that there is no bucket.
	Unfit
)

func (c Condition) String() string {
	return [...]string{Stale: "stale", Live: "live", NoLeader: "no leader", Unfit: "unfit"}[c]
}

// State is the condition of a mirror and its bucket.
type State struct {
	Condition
	Since time.Time // when the condition began, by this machine's clock
	Why   error     // nil while the mirror is live
	// Current is how many of the bucket's Replicas have its records, including the leader, or 0 without a leader.
	// Both come from the leader's last reply.
	Current, Replicas int
}

// Writable reports whether clients can get locks in the bucket, according to the leader's last reply.
func (s State) Writable() bool {
	return s.Condition != NoLeader && s.Condition != Unfit && s.Current > 0
}

// String returns the condition and, unless the mirror is live, when it began and why.
func (s State) String() string {
	if s.Why == nil {
		return s.Condition.String()
	}
	return fmt.Sprintf("%v since %s: %v", s.Condition, s.Since.Format("15:04:05"), s.Why)
}

// Late returns how late a lease's next renewal is at the given server time, or 0 if it is not late. A client renews
// a lease after a third of its TTL.
func Late(h admin.Holder, server time.Time) time.Duration {
	if h.Fixed || h.Unreadable || h.Overdue || h.Broken != nil || h.Expires.IsZero() {
		return 0
	}
	return max(server.Sub(h.Expires)+h.TTL-h.TTL/3, 0)
}

// evidence is what a mirror knows about itself and its bucket.
type evidence struct {
	connected bool
	missed    error  // why the copy may lack changes; nil once the locks have been listed
	answer    answer // the leader's latest reply
}

// answer is the leader's reply about the bucket, or the zero value if there is none.
type answer struct {
	info *kvstore.Info
	err  error // set instead of info
	// highest is a revision that the bucket had reached before the mirror asked. behind counts consecutive replies
	// with a revision below highest. A single such reply proves nothing, because a newly elected leader may still
	// be applying the last writes.
	highest uint64
	behind  int
}

var (
	// ErrReading means that a mirror has missed nothing but is still listing the locks.
	ErrReading = errors.New("reading the locks")
	errAway    = errors.New("no connection to the server")
)

// judge returns the condition that the evidence implies. The state of the bucket takes precedence over that of the
// copy, because a mirror that does not know whether there is a leader cannot know whether a lock is held.
func (e evidence) judge(bucket string) (Condition, error) {
	info := e.answer.info
	switch {
	case !e.connected && e.missed != nil && !errors.Is(e.missed, ErrReading):
		return Stale, e.missed
	case !e.connected:
		return Stale, errAway
	case errors.Is(e.answer.err, kvstore.ErrNotFound):
		return Unfit, fmt.Errorf("there is no bucket %s: %w; create it with \"lockctl init\"", bucket, e.answer.err)
	case errors.Is(e.answer.err, kvstore.ErrNoStream): // the error's own text says the same
		return NoLeader, fmt.Errorf("%w: bucket %s has no leader, so no client can get a lock; start the missing servers, and if none is missing, run \"lockctl doctor\"", natslock.ErrUnavailable, bucket)
	case e.answer.err != nil:
		return NoLeader, fmt.Errorf("no leader of bucket %s answers, so no client can get a lock: %w; start the missing servers, and run \"lockctl doctor\"", bucket, e.answer.err)
	case info == nil:
		return Stale, ErrReading
	}
	if there, _ := replicas(info); 2*there <= info.Config.Replicas {
		return NoLeader, fmt.Errorf("%w: the leader of bucket %s reaches only %d of %d servers (including itself), so no client can get a lock; start the missing servers, and run \"lockctl doctor\"",
			natslock.ErrUnavailable, bucket, there, info.Config.Replicas)
	}
	if err := unfit(bucket, info); err != nil {
		return Unfit, err
	}
	if e.answer.behind > 1 {
		return Unfit, fmt.Errorf("%w: revisions of bucket %s went backwards, from %d to %d: it was restored from a backup or has lost writes. Clients grant no locks in it; stop them, then %s",
			natslock.ErrUnavailable, bucket, e.answer.highest, info.State.LastSeq, remake(info))
	}
	if e.missed != nil {
		return Stale, e.missed
	}
	return Live, nil
}

// fewWrites is how many writes a replica can lag behind and still be considered current. Replicas often lag for a
// moment while clients write.
const fewWrites = 1000

// silent is how long the leader can go without hearing from a replica before the replica is considered unreachable.
const silent = 10 * time.Second

// replicas returns how many of a bucket's servers the leader reaches, and how many of those have the bucket's
// records. Both numbers include the leader.
func replicas(info *kvstore.Info) (there, current int) {
	there, current = 1, 1
	if info.Cluster == nil {
		return there, current
	}
	for _, r := range info.Cluster.Replicas {
		if r.Offline || !r.Current && r.Active > silent {
			continue
		}
		if there++; r.Current || r.Lag <= fewWrites {
			current++
		}
	}
	return there, current
}

// unfit returns an error if a setting keeps clients from granting locks. The error also says how to repair the
// setting.
func unfit(bucket string, info *kvstore.Info) error {
	findings, err := kvstore.Examine(kvstore.Config{Bucket: bucket, Storage: info.Config.Storage}, info)
	if err != nil {
		return err
	}
	var first *kvstore.Finding
	updates := true
	for _, f := range findings {
		if f.Level == kvstore.Unfit {
			if first == nil {
				first = &f
			}
			updates = updates && f.Update
		}
	}
	if first == nil {
		return nil
	}
	repair := "\"lockctl init\" repairs it"
	if !updates {
		repair = "stop the clients, then " + remake(info)
	}
	return fmt.Errorf("%w: %s of bucket %s is %s, must be %s: %s. Clients grant no locks in it; %s",
		kvstore.ErrBucketConfig, first.Setting, bucket, first.Value, first.Want, first.Why, repair)
}

// remake returns advice on how to re-create the bucket.
func remake(info *kvstore.Info) string {
	return fmt.Sprintf("re-create the bucket with \"nats stream rm %s\" and \"lockctl init\"", info.Config.Name)
}
