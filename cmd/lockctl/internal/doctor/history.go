package doctor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/tool"
)

const (
	// errCodeOffline is the server's code for "stream is offline", which nats.go does not
	// define.
	errCodeOffline = 10118
	// lostSince is how far back the doctor counts the writes that are missing from a history.
	lostSince = time.Hour
	// lostMany is how many missing writes cause a warning, provided that they are more than a
	// quarter of all writes. Fewer are normal, because the server cannot copy a record that is
	// replaced immediately.
	lostMany = 1000
	// unfed is how long a source is allowed to be silent. The server receives a heartbeat every
	// second, and sets up a silent source again after 10 s.
	unfed = time.Minute
)

// kept is what the doctor knows about a history.
type kept struct {
	bucket, info *jetstream.StreamInfo
	*kvstore.History
	missing, all uint64 // writes within lostSince
}

// history checks the stream that keeps the bucket's history.
func (d *doctor) history() {
	ctx, cancel := d.quietly()
	defer cancel()
	h, name := kept{bucket: &d.info.StreamInfo}, kvstore.HistoryStream(&d.info.StreamInfo, 0, 0).Name
	err := h.ask(ctx, d, name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		d.ok("history", "none: \"lockctl init --history 7d\" creates one")
		return
	case session.IsAPIError(err, errCodeOffline):
		d.add("history", checkError, leaderlessRepair, "stream %s has no leader: all of its servers are offline", name)
		return
	case err == nil:
		if found, repair := h.broken(); found != "" {
			d.add("history", checkError, repair, "%s", found)
			return
		}
		err = h.read(ctx, d)
	}
	if err == nil && d.wentBack(ctx, h.Last) {
		return
	}
	if err != nil { // including a timeout: there may be no history, and no server to say so
		d.unseen("history", err, "the history cannot be read")
		return
	}
	status, found, repair := h.judge()
	d.add("history", status, repair, "%s", found)
}

// ask requests the state of the history stream.
func (h *kept) ask(ctx context.Context, d *doctor, name string) error {
	stream, err := d.s.JS.Stream(ctx, name)
	if err == nil {
		h.info = stream.CachedInfo()
	}
	return err
}

// read opens the history, which involves waiting for the latest writes, and then counts the
// missing writes.
func (h *kept) read(ctx context.Context, d *doctor) error {
	store, err := kvstore.Open(ctx, d.s.JS, d.cfg)
	if err != nil {
		return err
	}
	defer store.Close()
	if h.History, err = store.History(ctx); err != nil {
		return err
	}
	h.missing, h.all, err = h.Missing(ctx, h.Now.Add(-lostSince))
	if err != nil && !errors.Is(err, kvstore.ErrRemade) { // after ErrRemade, only the number is unknown
		return err
	}
	return h.ask(ctx, d, h.info.Config.Name)
}

// wentBack adds an error if the bucket's last revision is below that of its history, which
// means that the bucket's fencing tokens have gone backwards. A history can copy a write before
// the bucket's leader has applied it, so wentBack keeps asking that leader for up to
// catchingUp.
func (d *doctor) wentBack(ctx context.Context, copied uint64) bool {
	name := d.info.Config.Name
	for end := time.Now().Add(catchingUp); ; {
		stream, err := d.s.JS.Stream(ctx, name)
		if err != nil || stream.CachedInfo().State.LastSeq >= copied {
			return false
		}
		if time.Now().After(end) {
			d.add("tokens", checkError, fmt.Sprintf("stop the services, re-create the bucket with \"nats stream rm %s\" and \"lockctl init\", and start them", name),
				"stream %s is at revision %d, but its history has revision %d: it was restored from a backup, or re-created by a client whose clock is behind. "+
					"Fencing tokens went backwards, and clients that know higher ones refuse every lock", name, stream.CachedInfo().State.LastSeq, copied)
			d.Checks[len(d.Checks)-1].code = tool.ExitConfig
			return true
		}
		time.Sleep(catchingUp / 20)
	}
}

// lost returns the repair for a history that lacks writes, depending on the reason.
//
// After an election, records that are replaced before the server resumes copying are lost. If
// the history keeps its leader, that leader notices after 10 to 20 s that the bucket's former
// leader is no longer sending anything. If the history also has a new leader, and that leader
// asks before the bucket has one, it gets no response, so it waits for 30 s, and then another
// 10 s before it asks again (srcConsumerWaitTime and retryBackOff in nats-server 2.15).
func (h *kept) lost() string {
	for _, info := range []*jetstream.StreamInfo{h.bucket, h.info} {
		if c := info.Cluster; c != nil && c.LeaderSince != nil && h.Now.Sub(*c.LeaderSince) < lostSince {
			return fmt.Sprintf("they cannot be recovered. Stream %s has had a new leader since %s: after an election the server copies nothing for up to 20 s, or up to 45 s if bucket and history lost their leaders together. Find out why %s lost its previous leader",
				info.Config.Name, show.Clock(*c.LeaderSince), info.Config.Name)
		}
	}
	return "they cannot be recovered: keep the history's servers up, and take a lock less than a thousand times a second"
}

const leaderlessRepair = "start the missing servers, and run doctor again in 20 s: the history lacks records that end before it has a leader"

// broken returns why the history does not copy the bucket's writes, and the repair. Both are
// empty if nothing is wrong.
func (h *kept) broken() (found, repair string) {
	name, of := h.info.Config.Name, h.bucket.Config.Name
	if c := h.info.Cluster; c != nil && c.Name != "" && c.Leader == "" {
		found = fmt.Sprintf("stream %s has no leader", name)
		for _, p := range c.Replicas {
			if p.Offline {
				found += ", " + p.Name + " is offline"
			}
		}
		return found, leaderlessRepair
	}
	again := fmt.Sprintf("\"nats stream rm %s\", which deletes its events, and \"lockctl init --history %s\"", name, ageOf(h.info.Config))
	i := slices.IndexFunc(h.info.Config.Sources, func(s *jetstream.StreamSource) bool {
		return s.Name == of && s.External == nil && (s.FilterSubject == "" || s.FilterSubject == ">") && len(s.SubjectTransforms) == 0
	})
	if i < 0 {
		return fmt.Sprintf("stream %s does not copy all of %s", name, of), again
	}
	if from, last := h.info.Config.Sources[i].OptStartSeq, h.bucket.State.LastSeq; from > last+1 {
		return fmt.Sprintf("stream %s copies revisions from %d on, but %s was re-created and is at %d", name, from, of, last), again
	}
	if err := h.source().Error; err != nil {
		return fmt.Sprintf("the server cannot copy %s: %s", of, err.Description), "remove the cause, and run doctor again in a minute: the server retries"
	}
	return "", ""
}

// source returns the state of copying from the bucket.
func (h *kept) source() jetstream.StreamSourceInfo {
	for _, s := range h.info.Sources {
		if s.Name == h.bucket.Config.Name {
			return *s
		}
	}
	return jetstream.StreamSourceInfo{Active: -1} // copying has not started
}

// judge returns the row for a history that is copying the bucket's writes.
func (h *kept) judge() (status, found, repair string) {
	c, size, source := h.info.Config, h.info.State.Bytes, h.source()
	found = fmt.Sprintf("since %s, %s of size", show.Clock(h.Begin), used(size, c.MaxBytes, bytesOf))
	behind := h.Behind > 0 && (source.Lag > 0 || source.Active < 0) || source.Active > unfed
	if h.missing > 0 {
		found += fmt.Sprintf("; of %s in the last hour %d missing", show.Count(int(h.all), "write"), h.missing)
	}
	switch {
	case behind && source.Active > unfed:
		found += fmt.Sprintf("; %s behind the bucket, which has been silent for %s", show.Count(int(h.Behind), "write"), show.Brief(source.Active))
	case behind:
		found += fmt.Sprintf("; %s behind the bucket", show.Count(int(h.Behind), "write"))
	case h.Behind > 0: // nothing is left to copy
		found += fmt.Sprintf("; the last %s missing", show.Count(int(h.Behind), "write"))
	}
	switch reach := h.Now.Sub(h.Begin); {
	case behind:
		return checkWarning, found, fmt.Sprintf("run doctor again in a minute, when the history should have caught up. If it has not, search its server's log for errors of stream %s", c.Name)
	case h.missing >= lostMany && h.missing > h.all/4 || h.Behind >= lostMany:
		return checkWarning, found, h.lost()
	case nearly(size, c.MaxBytes) && reach < c.MaxAge/10*9:
		return checkWarning, fmt.Sprintf("%s: it is too small for %s, and reaches back %s", found, ageOf(c), show.Brief(reach)), enough(c, size, reach)
	}
	return checkOK, found, ""
}

// enough returns the repair for a history that is too small: either a size that suits its
// maximum age and the current write rate, with a quarter in reserve, or a maximum age for which
// the current size is enough.
func enough(c jetstream.StreamConfig, size uint64, reach time.Duration) string {
	rate := float64(size) / max(reach, time.Second).Seconds()
	need := min(rate*c.MaxAge.Seconds()*5/4, 1<<62)
	text := fmt.Sprintf("\"lockctl init --history %s --history-size %d\" or more: %s a second are written, which makes %s, a quarter of it to spare",
		ageOf(c), int64(math.Ceil(need/(1<<20)))<<20, bytesOf(uint64(rate)), bytesOf(uint64(need)))
	for _, unit := range []time.Duration{24 * time.Hour, time.Hour, time.Minute} {
		if short := reach.Truncate(unit); short > 0 {
			return fmt.Sprintf("%s. Or \"lockctl init --history %s\", for which the size is enough", text, ageOf(jetstream.StreamConfig{MaxAge: short}))
		}
	}
	return text
}

// ageOf returns a history's maximum age as a value for init --history.
func ageOf(c jetstream.StreamConfig) string {
	switch days := c.MaxAge / (24 * time.Hour); {
	case c.MaxAge == 0: // init never creates a history without a limit
		return "7d"
	case days*24*time.Hour == c.MaxAge:
		return fmt.Sprintf("%dd", days)
	}
	text := c.MaxAge.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-len("0s")]
		}
	}
	return text
}
