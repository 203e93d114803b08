package doctor

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
)

// Server error codes for writes that are refused for lack of room. nats.go does not define
// them.
const (
	errCodeAccountFull = 10002 // "resource limits exceeded for account"
	errCodeServerFull  = 10023 // "insufficient resources"
	errCodeMemoryFull  = 10028 // "insufficient memory resources available"
	errCodeDiskFull    = 10047 // "insufficient storage resources available"
)

// room checks whether the bucket's limits leave room for more records.
func (d *doctor) room() {
	c, state := d.info.Config, d.info.State
	number := func(n uint64) string { return fmt.Sprint(n) }
	found := fmt.Sprintf("%s of records, %s of size", used(state.Msgs, c.MaxMsgs, number), used(state.Bytes, c.MaxBytes, bytesOf))
	full := c.MaxMsgs > 0 && state.Msgs >= uint64(c.MaxMsgs) || c.MaxBytes > 0 && state.Bytes >= uint64(c.MaxBytes)
	switch {
	case full:
		d.add("room", checkError, d.enlarge(), "%s: the bucket is full, and the server refuses new locks and places in queues", found)
	case kvstore.Room(&d.info.StreamInfo) != nil:
		d.add("room", checkError, d.enlarge(), "%s: clients take no new locks, because the rest is reserved for renewals and for clients that are already waiting", found)
	case nearly(state.Msgs, c.MaxMsgs) || nearly(state.Bytes, c.MaxBytes):
		d.add("room", checkWarning, d.enlarge(), "%s: a full bucket refuses new locks and places in queues", found)
	default:
		d.ok("room", "%s", found)
	}
}

// enlarge returns the repair for a bucket that has reached its limits.
func (d *doctor) enlarge() string {
	var repairs []string
	if c := d.info.Config; c.MaxMsgs > 0 {
		repairs = append(repairs, "\"nats stream edit "+c.Name+" --max-msgs=-1\"")
	}
	if d.info.Config.MaxBytes > 0 {
		repairs = append(repairs, fmt.Sprintf("\"lockctl init --max-bytes %d\" or more, or \"lockctl init --max-bytes=-1\" for no limit", max(2*d.info.Config.MaxBytes, 1<<20)))
	}
	return strings.Join(repairs, ", ")
}

// refusedWrite adds a row for the error from a lock's first write, and reports whether further
// writes may succeed.
func (d *doctor) refusedWrite(check string, err error) (again bool) {
	refusal, _ := errors.AsType[*jetstream.APIError](err)
	repair, again := "see the rows above", true
	switch {
	case errors.Is(err, kvstore.ErrFull) && d.enlarge() != "":
		repair, again = d.enlarge(), false
	case refusal != nil && refusal.ErrorCode == errCodeAccountFull:
		repair, again = "the account is full: raise its limits, or delete unneeded streams", false
	case refusal != nil && (refusal.ErrorCode == errCodeServerFull || refusal.ErrorCode == errCodeMemoryFull || refusal.ErrorCode == errCodeDiskFull):
		repair, again = "the server is full: raise max_file_store and max_memory_store, give it a larger disk, or delete unneeded streams", false
	case refusal == nil && errors.Is(err, natslock.ErrUnavailable) || errors.Is(err, natslock.ErrTimeout):
		repair, again = fmt.Sprintf("writes go unanswered: run doctor again in 20 s, because a leader that is cut off from the other replicas steps down by then. "+
			"Otherwise search the log of server %s for errors of stream %s", d.leader(), d.info.Config.Name), false
	default:
		d.fail(check, err, repair)
		return again
	}
	d.fail(check, err, repair)
	d.Checks[len(d.Checks)-1].code = tool.ExitInternal // rather than ExitUnavailable, because the server is reachable
	return again
}

// leader returns the name of the server that handles the bucket's writes.
func (d *doctor) leader() string {
	if c := d.info.Cluster; c != nil && c.Leader != "" {
		return c.Leader
	}
	return d.s.NC.ConnectedServerName()
}

const (
	// electing is how long the doctor waits for a leader. An election takes up to 9 s.
	electing = 15 * time.Second
	// electingPoll is how often the doctor asks for the leader while it waits.
	electingPoll = 500 * time.Millisecond
)

// leaderless adds a row that says why the stream has no leader.
//
// In nats-server 2.14 and 2.15, a publish with a wrong Nats-Expected-Last-Msg-Id permanently
// leaves a replicated stream without a leader. The leader replicates the message before it
// compares the IDs. Each replica then fails to apply the entry, treats that as a failed disk
// write, and no longer stands for election.
func (d *doctor) leaderless(cause error) {
	away, found, led := d.electing()
	ctx, cancel := d.quietly()
	defer cancel()
	// Only the cluster's leader knows which servers are offline. Without that leader, a server
	// reports lost replicas as present.
	_, err := d.s.JS.AccountInfo(ctx)
	switch {
	case led:
		d.fail("bucket", cause, "a leader has been elected in the meantime: run doctor again")
	case !found || len(away) > 0:
		d.fail("bucket", cause, "start the missing servers of the bucket's replicas: "+strings.Join(away, ", "))
	case err != nil:
		d.fail("bucket", cause, fmt.Sprintf("start the missing servers: the leader of the cluster does not answer (%v), so most servers may be down", d.why(err)))
	default:
		d.add("bucket", checkError, fmt.Sprintf("delete and re-create the stream with \"nats stream rm %s\" and \"lockctl init\"; restarts do not help. "+
			"All its locks are already lost, and the next tokens are higher. SECURITY.md says which users can cause this", session.StreamOf(d.cfg)),
			"all replicas are up, but none has led the stream for %v: it has stopped for good, as after a publish with a wrong Nats-Expected-Last-Msg-Id", electing)
		d.Checks[len(d.Checks)-1].code = tool.ExitConfig
	}
}

// electing waits for a leader, and reports in led whether there is one. Otherwise it returns
// the replicas that are offline, or found = false if no server responds for the stream.
func (d *doctor) electing() (away []string, found, led bool) {
	for end := time.Now().Add(electing); time.Now().Before(end); time.Sleep(electingPoll) {
		ctx, cancel := d.g.Bounded()
		stream, err := d.s.JS.Stream(ctx, session.StreamOf(d.cfg))
		cancel()
		if err != nil {
			continue
		}
		cluster := stream.CachedInfo().Cluster
		if cluster == nil || cluster.Leader != "" {
			return nil, true, true
		}
		found, away = true, nil
		for _, p := range cluster.Replicas {
			if p.Offline {
				away = append(away, p.Name+" is offline")
			}
		}
	}
	return away, found, false
}
