package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/tool"
)

// bucket finds the bucket, and returns false if there is no bucket to check.
func (d *doctor) bucket() bool {
	info, err := d.s.Bucket(d.g, d.cfg)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		d.fail("bucket", tool.Exitf(tool.ExitConfig, "there is no bucket %s at %s", d.g.Bucket, d.s.Where()), "create it with \"lockctl init\", or name another with --bucket, --js-domain or --context")
		return false
	case errors.Is(err, kvstore.ErrNoStream):
		d.leaderless(err)
		return false
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, kvstore.ErrUnavailable) && !errors.Is(err, kvstore.ErrPermission):
		d.fail("bucket", err, "no server answered for the bucket: start the servers that are missing from its replicas, or grant what lockctl perms PATTERN shows")
		return false
	case err != nil:
		d.fail("bucket", err, "lockctl perms PATTERN shows what the user needs")
		return false
	}
	d.info = info
	where := ""
	if info.Domain != "" {
		where = ", domain " + info.Domain
	}
	d.ok("bucket", "%s, created %s, %s of %s storage%s", info.Config.Name, show.Clock(info.Created),
		show.Count(info.Config.Replicas, "replica"), strings.ToLower(info.Config.Storage.String()), where)
	return true
}

func (d *doctor) settings() {
	all, err := kvstore.Examine(d.cfg, d.info)
	if err != nil {
		d.fail("settings", err, "")
		return
	}
	fine := 0
	for _, f := range all {
		repair := f.Repair
		if f.Update {
			repair += ": \"lockctl init\""
		}
		switch f.Level {
		case kvstore.Fine:
			if fine++; d.Verbose {
				d.ok(f.Setting, "%s", f.Value)
			}
		case kvstore.Worse:
			d.add(f.Setting, checkWarning, repair, "%s, should be %s: %s", f.Value, f.Want, f.Why)
		default:
			d.add(f.Setting, checkError, repair, "%s, must be %s: %s", f.Value, f.Want, f.Why)
			d.Checks[len(d.Checks)-1].code = tool.ExitConfig
		}
	}
	if !d.Verbose {
		d.ok("settings", "%d are as they should be", fine)
	}
}

// mirrors looks for mirrors of the bucket, which may serve reads in its place.
func (d *doctor) mirrors() {
	ctx, cancel := d.quietly()
	defer cancel()
	list := d.s.JS.ListStreams(ctx)
	var found []string
	n := 0
	for info := range list.Info() {
		n++
		if m := info.Config.Mirror; m != nil && m.Name == d.info.Config.Name && m.External == nil {
			found = append(found, info.Config.Name)
		}
	}
	switch err := list.Err(); {
	case err != nil:
		d.unseen("mirrors", err, "the account's streams cannot be listed")
	case len(found) > 0:
		d.add("mirrors", checkWarning, "remove the mirrors, or their mirror_direct", "%s is mirrored in %s: reads may return holders that no longer exist", d.info.Config.Name, strings.Join(found, ", "))
	default:
		d.ok("mirrors", "none among the account's %s", show.Count(n, "stream"))
	}
}

// domains looks for a bucket with the same name in other JetStream domains. A client that
// forgets the domain, or that is behind a leaf node with its own JetStream, would use that
// bucket instead.
func (d *doctor) domains() {
	asked := []string{}
	note := func(domain string, js jetstream.JetStream, err error) {
		if err != nil {
			d.add("other domains", checkUnknown, "", "%s: %v", domain, err)
			return
		}
		asked = append(asked, domain)
		ctx, cancel := d.quietly()
		defer cancel()
		stream, err := js.Stream(ctx, d.info.Config.Name)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrJetStreamNotEnabled),
			errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		case err != nil:
			d.add("other domains", checkUnknown, "", "%s: %v", domain, d.why(err))
		default:
			if other := stream.CachedInfo(); !other.Created.Equal(d.info.Created) {
				d.add("other domains", checkWarning, "delete one, or rename it: locks in one do not exclude clients of the other",
					"a second bucket %s exists in %s, created %s", d.g.Bucket, domain, show.Clock(other.Created))
			}
		}
	}
	before := len(d.Checks)
	if o := d.s.JS.Options(); o.Domain != "" || o.APIPrefix != "" {
		js, err := jetstream.New(d.s.NC)
		note("the connection's own domain", js, err)
	}
	for _, name := range d.OtherDomain {
		js, err := jetstream.NewWithDomain(d.s.NC, name)
		note("domain "+name, js, err)
	}
	if len(d.Checks) > before {
		return
	}
	if len(asked) == 0 {
		d.leave("other domains", "domains cannot be listed: name those that you know with --other-domain")
		return
	}
	d.ok("other domains", "no second bucket in %s", strings.Join(asked, ", "))
}

// listen subscribes to the notifications of every bucket with this name, whatever its domain.
func (d *doctor) listen() *nats.Subscription {
	sub, err := d.s.NC.SubscribeSync("natslock." + d.g.Bucket + ".*.>")
	if err != nil {
		return nil
	}
	return sub
}

// listening is how long the doctor listens for a second bucket. The other checks may take only
// 20 ms, and a second bucket might well not change in that time.
const listening = 250 * time.Millisecond

// second warns if a second bucket sends a notification before until. The subscription was
// created before the other checks ran.
func (d *doctor) second(notified *nats.Subscription, until time.Time) {
	if notified == nil || d.info.Config.RePublish == nil {
		return
	}
	own := strings.TrimSuffix(d.info.Config.RePublish.Destination, ">")
	var enough time.Time // deadline for reading what was sent before until
	for {
		left := time.Until(until)
		if left <= 0 && enough.IsZero() {
			_ = d.s.NC.FlushTimeout(listening) // on a busy machine, some messages may not have been read yet
			enough = time.Now().Add(listening)
		}
		if n, _, _ := notified.Pending(); !enough.IsZero() && (n == 0 || time.Now().After(enough)) {
			return
		}
		m, err := notified.NextMsg(max(left, time.Millisecond))
		if errors.Is(err, nats.ErrTimeout) {
			continue
		}
		if err != nil {
			return
		}
		if !strings.HasPrefix(m.Subject, own) && m.Header.Get("Nats-Sequence") != "" {
			d.add("other domains", checkWarning, "find the domain, and delete or rename one of the buckets",
				"notifications of a second bucket %s arrived in the meantime", d.g.Bucket)
			return
		}
	}
}

// replicas checks the servers that keep the bucket.
func (d *doctor) replicas() {
	c, n := d.info.Cluster, d.info.Config.Replicas
	if c == nil || c.Name == "" {
		d.ok("replicas", "one server, no cluster: locks stop when it does")
		return
	}
	away := d.missing()
	known := len(d.s.NC.Servers())
	found := fmt.Sprintf("%d on cluster %s of %s known, leader %s", n, c.Name, show.Count(known, "server"), c.Leader)
	switch {
	case c.Leader == "":
		d.add("replicas", checkError, "start the missing servers: without a majority nothing can be locked", "%d on cluster %s, no leader", n, c.Name)
		d.Checks[len(d.Checks)-1].code = tool.ExitUnavailable
	case len(d.stopped()) > 0:
		off := strings.Join(d.stopped(), ", ")
		d.add("replicas", checkWarning, "free space on the disk of "+off+" and restart the server: its JetStream does not restart on its own. One more failure may stop all locks",
			"%s; %s answers, but its JetStream is off, as after a full disk; %s", found, off, strings.Join(away, ", "))
	case len(away) > 0:
		d.add("replicas", checkWarning, "bring it back: one more failure may stop all locks", "%s; %s", found, strings.Join(away, ", "))
	case n%2 == 0:
		d.add("replicas", checkWarning, fmt.Sprintf("\"lockctl init --replicas %d\"", n+1), "%s: an even number is no safer than one fewer", found)
	default:
		d.ok("replicas", "%s", found) // num_replicas has its own row
	}
}

// stopped returns the names of the servers that have a replica of the bucket but run without
// JetStream.
func (d *doctor) stopped() (names []string) {
	for _, p := range d.info.Cluster.Replicas {
		if slices.ContainsFunc(d.visited, func(v visited) bool { return v.name == p.Name && !v.stored }) {
			names = append(names, p.Name)
		}
	}
	return names
}

// catchingUp is how long a replica may take to catch up. While clients are writing, replicas
// are often one write behind for a moment.
const catchingUp = time.Second

// missing returns the replicas that could not take over as leader, each with the reason. While
// replicas are still catching up, it keeps asking the leader, for up to catchingUp.
func (d *doctor) missing() []string {
	ctx, cancel := context.WithTimeout(context.Background(), catchingUp)
	defer cancel()
	c, n := d.info.Cluster, d.info.Config.Replicas
	current := map[string]bool{} // replicas that were up to date at least once
	for {
		away := missing(c, n, current)
		if len(away) == 0 {
			return nil
		}
		select {
		case <-time.After(catchingUp / 20):
		case <-ctx.Done():
			return away
		}
		stream, err := d.s.JS.Stream(ctx, d.info.Config.Name)
		if err != nil || stream.CachedInfo().Cluster == nil || stream.CachedInfo().Cluster.Leader != c.Leader {
			return away
		}
		c = stream.CachedInfo().Cluster
	}
}

// missing returns the replicas that could not take over as leader, each with the reason. It
// adds the replicas that are up to date to current, and treats those already in current as
// caught up. A server that is being added as a replica is at first missing from the leader's
// list, and then listed before it is up to date.
func missing(c *jetstream.ClusterInfo, replicas int, current map[string]bool) []string {
	var away []string
	for _, p := range c.Replicas {
		if p.Current && !p.Offline {
			current[p.Name] = true
		}
		switch {
		case p.Offline:
			away = append(away, p.Name+" is offline")
		case current[p.Name]:
		case p.Lag > 0:
			away = append(away, fmt.Sprintf("%s is %d behind", p.Name, p.Lag))
		case p.Active > 10*time.Second:
			away = append(away, fmt.Sprintf("%s was last active %v ago", p.Name, p.Active.Round(time.Second)))
		default:
			away = append(away, p.Name+" is not up to date yet")
		}
	}
	slices.Sort(away)
	if n := replicas - 1 - len(c.Replicas); n > 0 {
		away = append(away, show.Count(n, "replica")+" missing")
	}
	return away
}
