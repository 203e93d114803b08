package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
)

const (
	// slowLink is the longest round trip with which a writer can prove, at the default TTL,
	// that the readers ahead of it have left. A write and its response must fit into half of
	// the one-second margin.
	slowLink = 250 * time.Millisecond
	// clockSlack is the difference between wall clocks above which the doctor warns.
	clockSlack = time.Second
)

func (d *doctor) connection() {
	nc := d.s.NC
	cluster := "no cluster"
	if name := nc.ConnectedClusterName(); name != "" {
		cluster = fmt.Sprintf("cluster %s, %s known", name, show.Count(len(nc.Servers()), "server"))
	}
	d.ok("connection", "%s, server %s, %s", tool.WithoutCredentials(nc.ConnectedUrl()), nc.ConnectedServerName(), cluster)

	var rtts []time.Duration
	for range 11 {
		rtt, err := nc.RTT()
		if err != nil {
			d.fail("round trip", fmt.Errorf("%w: %w", nats.ErrTimeout, err), "")
			return
		}
		rtts = append(rtts, rtt)
	}
	d.roundTrip(rtts)
}

// roundTrip adds the row for the round trips to the server.
func (d *doctor) roundTrip(rtts []time.Duration) {
	slices.Sort(rtts)
	median, longest := rtts[len(rtts)/2], rtts[len(rtts)-1]
	status, repair := checkOK, ""
	if median > slowLink {
		status, repair = checkWarning, "run closer to the servers: reader-writer locks cannot be written over such a link"
	}
	d.add("round trip", status, repair, "median of %d is %s, the longest %s", len(rtts), show.Brief(median), show.Brief(longest))
}

// jetStream checks the account's limits. It returns false if there is no JetStream.
func (d *doctor) jetStream() bool {
	ctx, cancel := d.quietly()
	defer cancel()
	acc, err := d.s.JS.AccountInfo(ctx)
	switch {
	case d.notImported(err):
		d.unseen("jetstream", err, "the account's limits cannot be seen")
		return true
	case silent(err), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		d.fail("jetstream", d.s.NoJetStream(), "enable JetStream for this server and account, or name the domain with --js-domain")
		return false
	case err != nil:
		d.unseen("jetstream", err, "the account's limits cannot be seen")
		return true
	}
	found := usageOf(acc.Tier)
	full := nearlyFull(acc.Tier)
	for _, name := range slices.Sorted(maps.Keys(acc.Tiers)) { // one tier for each number of replicas
		found += fmt.Sprintf("; %s: %s", name, usageOf(acc.Tiers[name]))
		full = full || nearlyFull(acc.Tiers[name])
	}
	if acc.Domain != "" {
		found += ", domain " + acc.Domain
	}
	status, repair := checkOK, ""
	if full {
		status, repair = checkWarning, "raise the account's limits, or delete streams: a full account refuses new locks and renewals"
	}
	d.add("jetstream", status, repair, "%s", found)
	return true
}

// usageOf describes how much of its limits an account uses.
func usageOf(t jetstream.Tier) string {
	l := t.Limits
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	return fmt.Sprintf("%s of file storage, %s of memory, %s of streams",
		used(t.Store, l.MaxStore, bytesOf), used(t.Memory, l.MaxMemory, bytesOf), used(uint64(t.Streams), int64(l.MaxStreams), number))
}

// used returns n, followed by its limit if there is one.
func used(n uint64, limit int64, show func(uint64) string) string {
	if limit <= 0 {
		return show(n)
	}
	return show(n) + " of " + show(uint64(limit))
}

func nearlyFull(t jetstream.Tier) bool {
	return nearly(t.Store, t.Limits.MaxStore) || nearly(t.Memory, t.Limits.MaxMemory)
}

// nearly reports whether more than nine tenths of the limit are used.
func nearly(n uint64, limit int64) bool { return limit > 0 && n > uint64(limit)/10*9 }

func bytesOf(n uint64) string {
	for _, unit := range []struct {
		size uint64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= unit.size {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(unit.size), unit.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// quietly returns a context for requests that the server may refuse. A refusal cancels the
// context.
func (d *doctor) quietly() (context.Context, context.CancelFunc) {
	ctx, cancel := d.g.Bounded()
	d.s.NC.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			cancel()
		}
	})
	return ctx, cancel
}

// unseen records a request that failed. The check is left out if this user or account cannot
// make the request at all. Otherwise, its result is unknown.
func (d *doctor) unseen(check string, err error, what string) {
	switch err = d.why(err); {
	case errors.Is(err, nats.ErrPermissionViolation) || errors.Is(err, natslock.ErrPermission):
		d.leave(check, "%s by this user: %v", what, err)
	case d.notImported(err):
		d.leave(check, "%s: the API prefix %s does not lead there", what, strings.TrimSuffix(d.s.JS.Options().APIPrefix, "."))
	default:
		d.add(check, checkUnknown, "", "%s: %v", what, err)
	}
}

// silent reports whether err means that no server responds to JetStream API requests.
func silent(err error) bool {
	return errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, nats.ErrNoResponders)
}

// notImported reports whether err means that a request needs an import that this account lacks.
// Using the bucket does not require that import, because the bucket has its own.
func (d *doctor) notImported(err error) bool {
	o := d.s.JS.Options()
	return silent(err) && o.Domain == "" && o.APIPrefix != ""
}

// why returns the server's refusal if that is what canceled the request, and err otherwise.
func (d *doctor) why(err error) error {
	if errors.Is(err, context.Canceled) {
		return d.s.NC.LastError()
	}
	return err
}

// varz is the part of a server's monitoring page that the doctor uses.
type varz struct {
	Name      string    `json:"server_name"`
	Version   string    `json:"version"`
	Now       time.Time `json:"now"`
	JetStream struct {
		Config *struct {
			SyncInterval time.Duration `json:"sync_interval"`
			SyncAlways   bool          `json:"sync_always"`
		} `json:"config"`
	} `json:"jetstream"`
}

// disks asks the servers' monitoring ports how acknowledged writes reach the disk, because an
// account cannot see that.
func (d *doctor) disks() {
	const always = "set \"sync_interval: always\" in the jetstream block of the server's configuration"
	if d.info.Config.Storage == jetstream.MemoryStorage {
		d.ok("fsync", "nothing is on disk: the bucket is in memory")
		return
	}
	if len(d.Monitor) == 0 {
		d.leave("fsync", "only a server's monitoring port shows it: name it with --monitor")
		return
	}
	for _, base := range d.Monitor {
		v, sent, got, err := d.ask(base)
		if err != nil {
			d.add("fsync", checkUnknown, "", "%s: %v", tool.WithoutCredentials(base), err)
			continue
		}
		d.clock("clock of "+show.Plain(v.Name), v.Now, sent, got)
		c := v.JetStream.Config
		switch {
		case c == nil:
			d.add("fsync", checkUnknown, "", "%s has no JetStream", v.Name)
		case c.SyncAlways:
			d.ok("fsync", "%s writes to disk before it acknowledges", v.Name)
		case d.info.Config.Replicas > 1:
			d.ok("fsync", "%s writes to disk every %v: safe unless all replicas lose power at once", v.Name, c.SyncInterval)
		default:
			d.add("fsync", checkWarning, always+", or use three replicas in places that fail independently",
				"%s writes to disk every %v: when power fails, acknowledged locks are lost", v.Name, c.SyncInterval)
		}
	}
}

func (d *doctor) ask(base string) (v varz, sent, got time.Time, err error) {
	ctx, cancel := d.g.Bounded()
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(base, "/")+"/varz", nil)
	if err != nil {
		return v, sent, got, tool.WithoutURL(err)
	}
	sent = time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return v, sent, got, tool.WithoutURL(err)
	}
	defer resp.Body.Close()
	got = time.Now()
	if resp.StatusCode != http.StatusOK {
		return v, sent, got, fmt.Errorf("%s", resp.Status)
	}
	return v, sent, got, json.NewDecoder(resp.Body).Decode(&v)
}

// clock compares a server's time with the local times just before and just after the server's
// time was read.
func (d *doctor) clock(check string, server, sent, got time.Time) {
	// Compare wall clocks, not monotonic readings.
	early, late := server.Sub(sent.Round(0)), server.Sub(got.Round(0))
	switch {
	case early < -clockSlack:
		d.add(check, checkWarning, "synchronize the clocks with NTP: displayed times are wrong, and leases \"until\" a time end at a different one", "at least %s behind this machine's", show.Brief(-early))
	case late > clockSlack:
		d.add(check, checkWarning, "synchronize the clocks with NTP: displayed times are wrong, and leases \"until\" a time end at a different one", "at least %s ahead of this machine's", show.Brief(late))
	default:
		d.ok(check, "within %s of this machine's", show.Brief(max(early.Abs(), late.Abs())))
	}
}
