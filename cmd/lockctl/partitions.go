package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/mirror"
	"github.com/natslock/locks/internal/tool"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
	"github.com/natslock/locks/partition"
)

type partitionsCmd struct {
	Group string `arg:"" type:"name" optional:"" predictor:"group" help:"The group's name; without one, all groups are listed."`
	Wide  bool   `help:"Also show tokens, metadata, and each partition on its own line."`
	Watch bool   `short:"w" help:"Keep running, and show changes."`
	JSON  bool   `name:"json" help:"Print an array of objects; with --watch, one object per line for each change of a group."`
}

func (*partitionsCmd) Help() string {
	return `Shows a group of workers that share partitions. Each worker has a line with its weight,
how many partitions it owns and should own (its quota), who it is, how long it has been a
member, and its partitions. A leaving worker has no weight. Below are the partitions without
an owner, and those in motion, which have an owner but should have another. A crashed worker
stays an owner until its leases end.

--watch shows how long a partition has had no owner; so does a history: "lockctl history
ingest.part.7". On a terminal it shows the group as it is now; elsewhere it prints the whole
group after each change, below the time. It reports an outage of the server and waits.

Any user that may read the names below the group can run this. Without a group lockctl
lists all locks, and needs permission to read them.

  lockctl partitions
  lockctl partitions ingest --watch
  lockctl partitions ingest --json | jq '.[].partitions[] | select(.holder == null) | .number'

Exit code: 0, even if the group has no members, and when INT or TERM ends --watch.`
}

func (c *partitionsCmd) Run(g *session.Globals) error {
	if c.Watch {
		return c.watch(g)
	}
	s, err := g.Open()
	if err != nil {
		return err
	}
	defer s.End()
	groups, err := c.find(g, s)
	if err != nil {
		return err
	}
	if c.JSON {
		objects := make([]any, 0, len(groups))
		for _, group := range groups {
			objects = append(objects, group.Object())
		}
		return show.WriteJSON(g.Out, objects)
	}
	if len(groups) == 0 {
		g.Complain("%s", c.nobody())
		return nil
	}
	c.print(g.Out, groups)
	return nil
}

// nobody returns the message to print if there are no groups to show.
func (c *partitionsCmd) nobody() string {
	if c.Group == "" {
		return "no groups"
	}
	return "no members in the group " + show.Plain(c.Group) + show.NoPattern(c.Group)
}

// find reads the group named on the command line, or all groups if none was named.
func (c *partitionsCmd) find(g *session.Globals, s *session.Session) (groups []show.Group, err error) {
	ctx, cancel := g.Bounded()
	defer cancel()
	if err := s.Led(ctx, g); err != nil {
		return nil, err
	}
	if c.Group != "" {
		state, err := partition.Inspect(ctx, s.Client, c.Group)
		if err != nil {
			return nil, err
		}
		if len(state.Members) > 0 || slices.ContainsFunc(state.Partitions, func(p partition.Placement) bool { return p.Holder != nil }) {
			groups = []show.Group{{State: state}}
		}
	} else {
		var infos []admin.Info
		for info, err := range admin.New(s.Client).List(ctx, ">") {
			if errors.Is(err, natslock.ErrPermission) {
				return nil, tool.Exitf(tool.ExitPermission, "%w; name a group whose locks this user may read, as in \"lockctl partitions ingest\"", err)
			}
			if err != nil {
				return nil, err
			}
			infos = append(infos, info)
		}
		return c.groups(infos), nil
	}
	return groups, nil
}

func (c *partitionsCmd) print(w io.Writer, groups []show.Group) {
	if c.Group == "" {
		groupTable(w, groups)
		return
	}
	for _, g := range groups {
		c.printGroup(w, g)
	}
}

// groupTable prints one line per group.
func groupTable(w io.Writer, groups []show.Group) {
	t := numbered(w, 2, "group", "partitions", "members", "unowned", "in motion")
	for _, g := range groups {
		unowned, moving := show.Tally(g.State)
		t.AppendRow(table.Row{show.Plain(g.Group), g.Count, len(g.Members), alarming(unowned), moving})
	}
	t.Render()
}

// numbered returns a table that right-aligns column from and all columns after it. Columns are
// numbered from 1.
func numbered(w io.Writer, from int, header ...any) table.Writer {
	t := show.NewTable(w, header...)
	var configs []table.ColumnConfig
	for i := from; i <= len(header); i++ {
		configs = append(configs, table.ColumnConfig{Number: i, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(configs)
	return t
}

// alarming formats a number that should be zero.
func alarming(n int) string {
	if n == 0 {
		return "0"
	}
	return show.Alarm.Sprint(n)
}

// printGroup prints the group's members, and the partitions that are unowned or changing
// owners. With --wide it prints all partitions.
func (c *partitionsCmd) printGroup(w io.Writer, g show.Group) {
	unowned, moving := show.Tally(g.State)
	fmt.Fprintf(w, "%s: %s, %s, %s unowned, %d in motion\n\n", show.Plain(g.Group), show.Count(g.Count, "partition"), show.Count(len(g.Members), "member"), alarming(unowned), moving)
	c.members(w, g)
	for _, m := range g.Refused {
		fmt.Fprintln(w, show.Alarm.Sprint(show.Plain(m.ID)+" is configured for a different number of partitions and is leaving")+": "+show.Who(m.Owner, m.Host, m.PID))
	}
	switch {
	case c.Wide && g.Count > 0:
		fmt.Fprintln(w)
		allPartitions(w, g)
	case unowned+moving > 0:
		fmt.Fprintln(w)
		changes(w, g)
	}
}

// members prints a line for each worker: first the members, then the workers that are leaving
// but still own partitions.
func (c *partitionsCmd) members(w io.Writer, g show.Group) {
	header := []any{"member", "weight", "owned", "quota", "owner", "joined", "partitions"}
	if c.Wide {
		header = append(header, "token", "meta")
	}
	t := show.NewTable(w, header...)
	right := func(n int) table.ColumnConfig {
		return table.ColumnConfig{Number: n, Align: text.AlignRight, AlignHeader: text.AlignRight}
	}
	t.SetColumnConfigs([]table.ColumnConfig{right(2), right(3), right(4), right(6)})
	owned, quota := show.Shares(g.State)
	for _, m := range g.Members {
		row := table.Row{show.Plain(m.ID), m.Weight, len(owned[m.ID]), quota[m.ID], show.Who(m.Owner, m.Host, m.PID), show.Brief(time.Since(m.Since)) + " ago", cmp.Or(show.Ranges(owned[m.ID]), "-")}
		if c.Wide {
			row = append(row, m.Token, show.MetaList(m.Meta))
		}
		t.AppendRow(row)
		delete(owned, m.ID)
	}
	former := make(map[string][]int) // keyed by process
	for _, p := range g.Partitions {
		if p.Former {
			name := show.HolderName(*p.Holder)
			former[name] = append(former[name], p.Number)
		}
	}
	for _, p := range g.Partitions { // in the order of each worker's first partition
		if p.Member == "" {
			continue
		}
		by, name := owned, p.Member
		if p.Former {
			by, name = former, show.HolderName(*p.Holder)
		}
		numbers := by[name]
		if numbers == nil {
			continue
		}
		row := table.Row{show.Plain(p.Member) + " (leaving)", "-", len(numbers), 0, show.HolderName(*p.Holder), "-", show.Ranges(numbers)}
		if c.Wide {
			row = append(row, "-", "")
		}
		t.AppendRow(row)
		delete(by, name)
	}
	t.Render()
}

// ownerOf returns the table cell that names a partition's owner.
func ownerOf(p partition.Placement) string {
	switch {
	case p.Former:
		return show.Plain(p.Member) + " (leaving)"
	case p.Member != "":
		return show.Plain(p.Member)
	case p.Holder != nil: // locked by hand
		return show.HolderName(*p.Holder)
	}
	return show.Alarm.Sprint("nobody")
}

// changes prints the partitions that are unowned or changing owners, with one line for each
// pair of current and planned owner.
func changes(w io.Writer, g show.Group) {
	type change struct {
		owner, planned string
		unowned        bool
		numbers        []int
		waiting        int
		since          time.Time // when the first of them became unowned
	}
	var all []*change
	for _, p := range g.Partitions {
		if p.Holder != nil && !show.Moves(p) {
			continue
		}
		owner, planned := ownerOf(p), cmp.Or(show.Plain(p.Planned), "-")
		i := slices.IndexFunc(all, func(c *change) bool { return c.owner == owner && c.planned == planned })
		if i < 0 {
			i = len(all)
			all = append(all, &change{owner: owner, planned: planned, unowned: p.Holder == nil})
		}
		c := all[i]
		c.numbers = append(c.numbers, p.Number)
		c.waiting += p.Waiting
		if at, ok := g.Unowned[p.Number]; ok && (c.since.IsZero() || at.Before(c.since)) {
			c.since = at
		}
	}
	slices.SortStableFunc(all, func(a, b *change) int { // unowned ones first
		return cmp.Compare(strconv.FormatBool(b.unowned), strconv.FormatBool(a.unowned))
	})
	header := []any{"owner", "planned", "waiting", "partitions"}
	if g.Unowned != nil {
		header = append(header, "unowned for")
	}
	t := show.NewTable(w, header...)
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 3, Align: text.AlignRight, AlignHeader: text.AlignRight}})
	for _, c := range all {
		row := table.Row{c.owner, c.planned, c.waiting, show.Ranges(c.numbers)}
		if g.Unowned != nil {
			row = append(row, unownedFor(c.since))
		}
		t.AppendRow(row)
	}
	t.Render()
}

// unownedFor formats how long ago a partition was first seen without an owner.
func unownedFor(since time.Time) string {
	if since.IsZero() {
		return "-"
	}
	return show.Brief(time.Since(since)) + " or more"
}

// allPartitions prints a line for each partition.
func allPartitions(w io.Writer, g show.Group) {
	header := []any{"partition", "owner", "token", "held", "expires", "planned", "waiting"}
	if g.Unowned != nil {
		header = append(header, "unowned for")
	}
	t := show.NewTable(w, header...)
	var configs []table.ColumnConfig
	for _, n := range []int{1, 4, 5, 7} {
		configs = append(configs, table.ColumnConfig{Number: n, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(configs)
	for _, p := range g.Partitions {
		row := table.Row{p.Number, ownerOf(p), "-", "-", "-", cmp.Or(show.Plain(p.Planned), "-"), p.Waiting}
		if h := p.Holder; h != nil {
			row[2], row[3], row[4] = strconv.FormatUint(h.Token, 10), show.Brief(time.Since(h.Since)), show.Expiry(*h)
		}
		if g.Unowned != nil {
			row = append(row, unownedFor(g.Unowned[p.Number]))
		}
		t.AppendRow(row)
	}
	t.Render()
}

const (
	// watchPause is the minimum time between two printouts of a group, however often the group
	// changes.
	watchPause = 100 * time.Millisecond
	// watchAgain is how often the times shown on a terminal are updated.
	watchAgain = time.Second
)

// watch prints the group, and prints it again after every change.
func (c *partitionsCmd) watch(g *session.Globals) error {
	pattern, prefix := ">", ""
	if c.Group != "" {
		if strings.ContainsAny(c.Group, "*>") {
			return tool.Usagef("the group %q contains a wildcard: name one group", c.Group)
		}
		pattern, prefix = c.Group+".>", c.Group+"."
	}
	s, err := g.Connect()
	if err != nil {
		return err
	}
	defer s.End()
	w := groupWatch{c: c, g: g}
	if f := console.Terminal(g.Out.W); f != nil && !c.JSON {
		w.screen = &screen{f: f}
	}
	news := make(chan struct{}, 1)
	changed := func() {
		select {
		case news <- struct{}{}:
		default:
		}
	}
	m := s.Mirror(g, mirror.Config{Pattern: pattern, Changed: func(mirror.ID) { changed() }, Turned: func(mirror.State) { changed() }})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- s.Follow(ctx, m, pattern) }()
	for begun := false; ; {
		pause, again := time.After(watchPause), time.After(watchAgain)
		begun = begun || m.Client() != nil
		switch st := m.State(); {
		case errors.Is(st.Why, mirror.ErrReading):
		case st.Condition == mirror.Live:
			w.note(c.groups(m.Below(prefix)), time.Now())
			err = w.show(s.URL, "")
		case begun: // until it has begun, Follow returns the reason itself
			err = w.show(s.URL, show.Plain(st.Why.Error()))
		}
		if err != nil {
			return err
		}
		select {
		case <-news:
		case <-again:
		case err := <-ended:
			return err
		}
		<-pause
	}
}

// groups returns the groups that infos contains, limited to c.Group if one was named.
func (c *partitionsCmd) groups(infos []admin.Info) (groups []show.Group) {
	for _, state := range partition.Groups(infos) {
		if c.Group == "" || state.Group == c.Group {
			groups = append(groups, show.Group{State: state})
		}
	}
	return groups
}

// groupWatch is the state of --watch.
type groupWatch struct {
	c      *partitionsCmd
	g      *session.Globals
	screen *screen // nil for a pipe or a file

	groups []show.Group
	shown  map[string]string // fingerprints of the printed groups
	begun  bool
	outage
}

// note records the current groups. A partition that was already unowned keeps the time at which
// watch first saw it unowned.
func (w *groupWatch) note(groups []show.Group, now time.Time) {
	before := w.groups
	w.groups = groups
	for i := range groups {
		g := &groups[i]
		g.Unowned = make(map[int]time.Time)
		var known map[int]time.Time
		if j := slices.IndexFunc(before, func(b show.Group) bool { return b.Group == g.Group }); j >= 0 {
			known = before[j].Unowned
		}
		for _, p := range g.Partitions {
			if p.Holder != nil {
				continue
			}
			g.Unowned[p.Number] = now
			if at, ok := known[p.Number]; ok {
				g.Unowned[p.Number] = at
			}
		}
	}
}

func (w *groupWatch) show(url, trouble string) error {
	var b strings.Builder
	if w.screen != nil {
		if len(w.groups) > 0 {
			w.c.print(&b, w.groups)
		} else {
			b.WriteString(w.c.nobody())
		}
		return w.screen.draw("partitions at "+url, trouble, strings.Split(strings.TrimRight(b.String(), "\n"), "\n"))
	}
	if w.goesOn(w.g, trouble) {
		return nil
	}
	now := make(map[string]string, len(w.groups))
	var news []show.Group
	for _, g := range w.groups {
		now[g.Group] = groupFingerprint(g)
		if now[g.Group] != w.shown[g.Group] {
			news = append(news, g)
		}
	}
	for _, name := range gone(w.shown, now) {
		news = append(news, show.Group{State: partition.State{Group: name}})
	}
	first := !w.begun
	w.begun, w.shown = true, now
	switch {
	case w.c.JSON:
		for _, g := range news {
			if _, err := fmt.Fprintln(w.g.Out, show.OneLine(g.Object())); err != nil {
				return err
			}
		}
		return nil
	case len(w.groups) == 0:
		if first || len(news) > 0 {
			w.g.Complain("%s", w.c.nobody())
		}
		return nil
	case len(news) == 0:
		return nil
	}
	fmt.Fprintln(&b, time.Now().Format("15:04:05"))
	w.c.print(&b, w.groups)
	_, err := fmt.Fprintln(w.g.Out, b.String())
	return err
}

// gone returns the names that are in before but not in now, sorted.
func gone(before, now map[string]string) (names []string) {
	for name := range before {
		if _, there := now[name]; !there {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// groupFingerprint returns a string that changes whenever the group should be printed again.
func groupFingerprint(g show.Group) string {
	var b strings.Builder
	fmt.Fprint(&b, g.Count)
	for _, m := range slices.Concat(g.Members, g.Refused) {
		fmt.Fprint(&b, " ", m.Token)
	}
	for _, p := range g.Partitions {
		fmt.Fprintf(&b, " %q %d", p.Planned, p.Waiting)
		if p.Holder != nil {
			fmt.Fprint(&b, " by ", p.Holder.Token)
		}
	}
	return b.String()
}

// screen is a terminal that is redrawn with every update.
type screen struct {
	f     *os.File
	drawn bool
}

// draw prints the title and as many rows as fit.
func (d *screen) draw(title, trouble string, rows []string) error {
	columns, lines := console.TerminalSize(d.f)
	if room := max(lines-2, 1); len(rows) > room { // leave room for the title and a final newline
		rows = append(rows[:room-1], show.Faint.Sprint("..."))
	}
	title += ", " + time.Now().Format("15:04:05")
	if trouble != "" {
		title = show.Alarm.Sprint(trouble) + ", " + title
	}
	var b strings.Builder
	if !d.drawn {
		b.WriteString("\x1b[2J")
	}
	d.drawn = true
	b.WriteString("\x1b[H")
	for _, row := range append([]string{show.Faint.Sprint(title)}, rows...) {
		b.WriteString(text.Trim(row, columns) + "\x1b[0m\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	_, err := d.f.WriteString(b.String())
	return err
}

// outage says why nothing is being printed to a pipe or a file. The start and end of an outage
// are reported on standard error.
type outage struct{ trouble string }

func (o *outage) goesOn(g *session.Globals, trouble string) bool {
	if trouble != "" && o.trouble == "" {
		g.Complain("%s; trying again", trouble)
	}
	if trouble == "" && o.trouble != "" {
		g.Complain("reconnected")
	}
	o.trouble = trouble
	return trouble != ""
}
