package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/partition"
)

type checkCmd struct {
	Pattern    string        `arg:"" type:"name" optional:"" default:">" predictor:"lock" help:"Names to check: \"*\" stands for one token, a final \">\" for all that follow."`
	Held       time.Duration `placeholder:"DURATION" help:"Report a lock that has been held for longer."`
	Waits      time.Duration `placeholder:"DURATION" help:"Report a lock with a longer wait."`
	Late       time.Duration `placeholder:"DURATION" help:"Report a lock renewed later than planned by more than this."`
	Queue      *int          `placeholder:"N" help:"Report a lock with more than N waiters."`
	Partitions string        `type:"name" placeholder:"GROUP" predictor:"group" help:"Check the locks of this group of workers instead of a pattern."`
	Unowned    *int          `placeholder:"N" help:"Report more than N partitions without an owner."`
	Moving     *int          `placeholder:"N" help:"Report more than N partitions that have an owner but should have another."`
	All        bool          `help:"Also report what is held or waited for by design."`
	ExitCode   int           `short:"E" name:"exit-code" default:"1" placeholder:"N" help:"Exit code when a lock is reported: 2 is critical for Nagios."`
	JSON       bool          `name:"json" help:"Print an array of the reported locks, as ls does."`
}

func (*checkCmd) Help() string {
	return `Compares each lock with limits, and prints one line: "ok", or the lock furthest beyond its
limit and how many more there are. A lock exactly at its limit is within it. Times are by
the clocks of holders, waiters and this machine.

A lock that is idle or overdue does not count as held. Of readers and permits the oldest
counts. A writer that waits for readers to leave is a waiter. Without --all, the limits
--held, --waits and --queue ignore what is held or waited for by design: leaders and
standbys of an election, members of a group and their partitions, locks of scripts, jobs.

A name used by locks of different kinds is always reported: they do not exclude each other.

A client renews its lease after a third of the TTL: with a TTL of 15s, after 5s. --late 3s
reports one last renewed more than 8s ago. Leases that are never renewed, such as those of
"lockctl acquire", are never late.

--partitions reports a group without members. A moving partition briefly has no owner, so
alert only after several reports in a row. Workers wait only for partitions that they
should own: --waits limits how long one is in motion.

  lockctl check --held 10m --waits 1m --queue 20
  lockctl check 'orders.>' --held 30s -E 2
  lockctl check --partitions ingest --unowned 0 --waits 1m

Exit code: 0 if all locks are within the limits; 1, or -E, if one is not. Any other code
means that nothing is known: 64 without a limit, 69 without a leader of the bucket, 78 if
the bucket is unfit.`
}

// excess describes an exceeded limit and the locks that exceed it.
type excess struct {
	infos []admin.Info // a single lock, except for limits on partitions
	text  string
	by    float64 // actual value as a multiple of the limit
}

func (c *checkCmd) Run(g *session.Globals) error {
	switch {
	case c.Partitions == "" && (c.Unowned != nil || c.Moving != nil):
		return tool.Usagef("--unowned and --moving are limits for a group: name it with --partitions")
	case c.Partitions != "" && c.Pattern != ">":
		return tool.Usagef("--partitions and a pattern are mutually exclusive")
	case c.Partitions == "" && c.Held <= 0 && c.Waits <= 0 && c.Late <= 0 && c.Queue == nil:
		return tool.Usagef("no limit: give --held, --waits, --late, --queue or --partitions; times must be above 0")
	case c.Held < 0 || c.Waits < 0 || c.Late < 0 || below0(c.Queue) || below0(c.Unowned) || below0(c.Moving):
		return tool.Usagef("limits must not be negative")
	case c.ExitCode < 1 || c.ExitCode > 255:
		return tool.Usagef("--exit-code %d: must be from 1 to 255", c.ExitCode)
	}
	if c.Partitions != "" {
		if strings.ContainsAny(c.Partitions, "*>") {
			return tool.Usagef("the group %q contains a wildcard: --partitions takes the name of one group", c.Partitions)
		}
		c.Pattern = c.Partitions + ".>"
	}
	infos, err := c.find(g)
	if err != nil {
		return err
	}
	var found []excess
	now, both := time.Now(), show.BothKinds(infos)
	for _, info := range infos {
		if e, beyond := c.judge(info, both[info.Name], now); beyond {
			found = append(found, e)
		}
	}
	if c.Partitions != "" {
		found = append(found, c.judgeGroup(infos)...)
	}
	slices.SortStableFunc(found, func(a, b excess) int { return cmp.Compare(b.by, a.by) })
	if c.JSON {
		reported := make([]admin.Info, 0, len(found))
		for _, e := range found {
			for _, info := range e.infos {
				if !slices.ContainsFunc(reported, func(r admin.Info) bool { return mirror.IDOf(r) == mirror.IDOf(info) }) {
					reported = append(reported, info)
				}
			}
		}
		if err := show.PrintJSON(g.Out, reported); err != nil {
			return err
		}
	} else {
		c.print(g, found, len(infos))
	}
	if len(found) > 0 {
		return &tool.Error{Code: c.ExitCode}
	}
	return nil
}

// find reads the locks. It fails if the bucket has no leader, because then no client can take a
// lock.
func (c *checkCmd) find(g *session.Globals) ([]admin.Info, error) {
	s, err := g.Open()
	if err != nil {
		return nil, err
	}
	defer s.End()
	ls := lsCmd{Pattern: c.Pattern, Sort: "name"}
	return ls.list(g, s)
}

// counts reports whether the limits apply to a holder or waiter with the given purpose. A
// holder or waiter that has a purpose, such as leading an election, holds or waits by design.
func (c *checkCmd) counts(purpose string) bool {
	return c.All || purpose == "" || c.Partitions != "" && purpose == "partition"
}

func (c *checkCmd) print(g *session.Globals, found []excess, checked int) {
	switch len(found) {
	case 0:
		fmt.Fprintf(g.Out, "ok: %s within the limits\n", show.Count(checked, "lock"))
		if checked == 0 && c.Partitions == "" {
			show.CheckPattern(g.Console, c.Pattern)
		}
	case 1:
		fmt.Fprintln(g.Out, found[0].text)
	default:
		unit := "lock"
		if c.Partitions != "" { // some reports concern the group rather than a lock
			unit = "report"
		}
		fmt.Fprintf(g.Out, "%s; and %s more\n", found[0].text, show.Count(len(found)-1, unit))
	}
}

// judge returns the limit that info exceeds by the largest factor, if any. both is set if a
// lock of another kind has the same name.
func (c *checkCmd) judge(info admin.Info, both bool, now time.Time) (worst excess, beyond bool) {
	worst.infos = []admin.Info{info}
	note := func(by float64, format string, args ...any) {
		if by > worst.by {
			worst.by, worst.text, beyond = by, fmt.Sprintf("%s %s", info.Kind, show.Plain(info.Name))+" "+fmt.Sprintf(format, args...), true
		}
	}
	if both {
		note(math.Inf(1), "shares its name with a lock of another kind, and the two do not exclude each other")
	}
	waits := func(since time.Time, who string) {
		if d := now.Sub(since); c.Waits > 0 && d > c.Waits {
			note(float64(d)/float64(c.Waits), "has kept %s waiting for %s (limit %v)", who, show.Brief(d), c.Waits)
		}
	}
	for _, h := range show.Holdings(info) {
		if d := mirror.Late(h.Holder, now); c.Late > 0 && d > c.Late {
			note(float64(d)/float64(c.Late), "is renewed late: %s last renewed it %s ago (limit %v)", h.Name(), show.Brief(now.Sub(h.Expires.Add(-h.TTL))), c.Late)
		}
		switch d := now.Sub(h.Since); {
		case h.Idle || h.Overdue || !c.counts(h.Purpose):
		case h.Waits:
			waits(h.Since, h.Name())
		case c.Held > 0 && d > c.Held:
			note(float64(d)/float64(c.Held), "has been held for %s by %s (limit %v)", show.Brief(d), h.Name(), c.Held)
		}
	}
	waiting := 0
	if h := info.Holder; h != nil && !h.Overdue && c.counts(h.Purpose) {
		waiting = h.Waiting // in the holder's client
	}
	for _, w := range info.Queue {
		if w.Overdue || !c.counts(w.Purpose) {
			continue
		}
		waiting += w.Goroutines
		waits(w.Since, show.Plain(w.Owner))
	}
	if c.Queue != nil && waiting > *c.Queue {
		note(float64(waiting)/max(float64(*c.Queue), 0.5), "has %s (limit %d)", show.Count(waiting, "waiter"), *c.Queue)
	}
	return worst, beyond
}

func below0(n *int) bool { return n != nil && *n < 0 }

// judgeGroup returns the partition limits that the group exceeds.
func (c *checkCmd) judgeGroup(infos []admin.Info) (found []excess) {
	name := "group " + show.Plain(c.Partitions)
	groups := partition.Groups(infos)
	i := slices.IndexFunc(groups, func(g partition.State) bool { return g.Group == c.Partitions })
	if i < 0 || len(groups[i].Members) == 0 {
		return []excess{{text: name + " has no members", by: math.Inf(1)}}
	}
	judge := func(limit *int, what string, counts func(partition.Placement) bool) {
		if limit == nil {
			return
		}
		e := excess{}
		var numbers []int
		for _, p := range groups[i].Partitions {
			if counts(p) {
				numbers = append(numbers, p.Number)
				e.infos = append(e.infos, lockOf(infos, fmt.Sprintf("%s.part.%d", c.Partitions, p.Number)))
			}
		}
		if n := len(numbers); n > *limit {
			e.by = float64(n) / max(float64(*limit), 0.5)
			e.text = fmt.Sprintf("%s has %s %s (%s; limit %d)", name, show.Count(n, "partition"), what, show.Ranges(numbers), *limit)
			found = append(found, e)
		}
	}
	judge(c.Unowned, "without an owner", func(p partition.Placement) bool { return p.Holder == nil })
	judge(c.Moving, "in motion", show.Moves)
	return found
}

// lockOf returns the mutex called name, or a free mutex if infos does not contain it.
func lockOf(infos []admin.Info, name string) admin.Info {
	for _, info := range infos {
		if info.Kind == admin.KindMutex && info.Name == name {
			return info
		}
	}
	return admin.Info{Kind: admin.KindMutex, Name: name}
}
