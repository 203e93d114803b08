package mirror

import (
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// Condition is the worth of a mirror's copy of the locks.
type Condition int

const (
	// Stale: the copy may lack changes, or there is none yet.
	Stale Condition = iota
	// Live: the copy is complete, a leader answers, and the bucket is fit. A lock that is not in the copy is free.
	Live
	// NoLeader: no server confirms a write or a read. Clients get no locks, and lose the locks that they hold.
	NoLeader
	// Unfit: clients grant no locks in the bucket, or it is gone.
	Unfit
)

func (c Condition) String() string {
	return [...]string{Stale: "stale", Live: "live", NoLeader: "no leader", Unfit: "unfit"}[c]
}

// State has the condition of a mirror and of its bucket.
type State struct {
	Condition
	Since time.Time // of the condition, by this machine's clock
	Why   error     // nil while the mirror is live
	// Current is the number of the Replicas of the bucket that have its records, including the leader. Both are of
	// the last answer, and Current is 0 without a leader.
	Current, Replicas int
}

// Writable reports whether clients get locks in the bucket, as far as its last answer shows.
func (s State) Writable() bool {
	return s.Condition != NoLeader && s.Condition != Unfit && s.Current > 0
}

// String names the condition, and if the mirror is not live since when and why.
func (s State) String() string {
	if s.Why == nil {
		return s.Condition.String()
	}
	return fmt.Sprintf("%v since %s: %v", s.Condition, s.Since.Format("15:04:05"), s.Why)
}

// Late returns the delay of the next renewal of a lease at a time of the server's, 0 if it is in time. A client
// renews after a third of the TTL.
func Late(h admin.Holder, server time.Time) time.Duration {
	if h.Fixed || h.Unreadable || h.Overdue || h.Broken != nil || h.Expires.IsZero() {
		return 0
	}
	return max(server.Sub(h.Expires)+h.TTL-h.TTL/3, 0)
}

// evidence has a mirror's knowledge of itself and of its bucket.
type evidence struct {
	connected bool
	missed    error  // why the copy may lack changes; nil once the locks are read
	answer    answer // the last one
}

// answer is the leader's answer about the bucket. The zero answer is none.
type answer struct {
	info *kvstore.Info
	err  error // in place of info
	// highest is a revision that the bucket had reached before the mirror asked. behind counts the consecutive answers
	// below it: a newly elected leader may still be applying the last writes.
	highest uint64
	behind  int
}

var (
	// ErrReading is the reason of a stale mirror that has lost nothing: it lists the locks.
	ErrReading = errors.New("reading the locks")
	errAway    = errors.New("no connection to the server")
)

// judge returns the verdict on the evidence. bucket is the name of the bucket. A mirror that does not know whether there is
// a leader does not know whether a lock is held, so the condition of the bucket comes before the condition of the copy.
func (e evidence) judge(bucket string) (Condition, error) {
	info := e.answer.info
	switch {
	case !e.connected && e.missed != nil && !errors.Is(e.missed, ErrReading):
		return Stale, e.missed
	case !e.connected:
		return Stale, errAway
	case errors.Is(e.answer.err, kvstore.ErrNotFound):
		return Unfit, fmt.Errorf("there is no bucket %s: %w; make it with \"lockctl init\"", bucket, e.answer.err)
	case errors.Is(e.answer.err, kvstore.ErrNoStream): // its text says the same
		return NoLeader, fmt.Errorf("%w: bucket %s has no leader, and nobody gets a lock; start the missing servers, and if none is missing, see \"lockctl doctor\"", natslock.ErrUnavailable, bucket)
	case e.answer.err != nil:
		return NoLeader, fmt.Errorf("no leader of bucket %s answers, and nobody gets a lock: %w; start the missing servers, and see \"lockctl doctor\"", bucket, e.answer.err)
	case info == nil:
		return Stale, ErrReading
	}
	if there, _ := replicas(info); 2*there <= info.Config.Replicas {
		return NoLeader, fmt.Errorf("%w: of the %d servers of bucket %s the leader reaches %d, itself included, and nobody gets a lock; start the missing servers, and see \"lockctl doctor\"",
			natslock.ErrUnavailable, info.Config.Replicas, bucket, there)
	}
	if err := unfit(bucket, info); err != nil {
		return Unfit, err
	}
	if e.answer.behind > 1 {
		return Unfit, fmt.Errorf("%w: revisions of bucket %s went backwards, from %d to %d: it was restored from a backup, or has lost writes. Clients refuse the locks in it; stop them, then %s",
			natslock.ErrUnavailable, bucket, e.answer.highest, info.State.LastSeq, remake(info))
	}
	if e.missed != nil {
		return Stale, e.missed
	}
	return Live, nil
}

// fewWrites limits how far a current replica may be behind, in writes. While clients write, replicas are
// often behind for a moment.
const fewWrites = 1000

// silent limits the time since a leader last heard from a replica. After that the replica counts as away.
const silent = 10 * time.Second

// replicas counts the servers of a bucket that the leader reaches, and how many of these have its records. The leader
// is one of both.
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

// unfit returns the settings that keep clients from granting locks, and their repair.
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

// remake tells an operator to make the bucket again.
func remake(info *kvstore.Info) string {
	return fmt.Sprintf("\"nats stream rm %s\" and \"lockctl init\" make the bucket again", info.Config.Name)
}
