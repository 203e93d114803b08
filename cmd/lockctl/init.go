package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/cmd/lockctl/internal/console"
	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/tool"
)

type initCmd struct {
	Replicas    int           `placeholder:"N" help:"Servers that keep the bucket: 1, 3 or 5 (default 3 on a cluster and 1 elsewhere, or unchanged)."`
	Storage     string        `enum:"file,memory," default:"" placeholder:"TYPE" help:"file or memory (default file, or unchanged)."`
	MaxBytes    int64         `placeholder:"BYTES" help:"Largest size of the bucket, --max-bytes=-1 for none (default unlimited, or unchanged)."`
	Cluster     string        `placeholder:"NAME" help:"Cluster to place the bucket in."`
	Tag         []string      `placeholder:"TAG" help:"Tag of the servers to place it on; can be repeated."`
	History     time.Duration `placeholder:"DURATION" help:"Keep a history of the locks for this long, such as 7d, for \"lockctl history\"."`
	HistorySize int64         `placeholder:"BYTES" help:"Largest size of that history (default 256 MiB, or unchanged)."`
	Print       bool          `help:"Print the stream's configuration as JSON, without a server."`
	Force       bool          `short:"f" aliases:"yes" help:"Do not ask."`
}

func (*initCmd) Help() string {
	return `Creates the bucket, or repairs it. It shows the settings that it will change and those that
only re-creating the bucket can change, asks, and changes the stream. It never deletes
anything. In a JetStream domain or account other than the users' it creates a second
bucket, whose locks do not exclude clients of the first; it prints where the bucket is.

--print prints a new bucket's configuration for declarative tools; on a cluster add
--replicas 3. It has a random id, and a first sequence that depends on the time: print it
once and keep it.

--history keeps a history from now on, in a stream beside the bucket with the same
replicas. "nats stream rm HISTORY_natslock" ends it.

  lockctl init
  lockctl init --history 7d
  lockctl init --print --replicas 3 >locks.json && nats stream add --config locks.json

Exit code: 0 if the bucket is as requested, and
  1    nothing was changed: you answered no, or another user changed the bucket
  64   usage, or no terminal to ask on
  78   the bucket is unfit, or not as requested, and must be re-created`
}

// AfterApply validates what kong's tags cannot express.
func (c *initCmd) AfterApply() error {
	switch {
	case c.Replicas < 0 || c.Replicas > 5:
		return fmt.Errorf("--replicas %d: must be 1, 3 or 5", c.Replicas)
	case c.MaxBytes < -1:
		return fmt.Errorf("--max-bytes %d: must be a number of bytes, or -1 for no limit", c.MaxBytes)
	case c.History != 0 && c.History < time.Minute:
		return fmt.Errorf("--history %v: must be at least a minute", c.History)
	case c.HistorySize < 0 || c.HistorySize > 0 && c.History == 0:
		return fmt.Errorf("--history-size %d: must be positive and combined with --history", c.HistorySize)
	case c.History > 0 && c.Print:
		return errors.New("--history and --print are mutually exclusive")
	}
	return nil
}

func (c *initCmd) config(g *session.Globals) kvstore.Config {
	cfg := kvstore.Config{Bucket: g.Bucket, Replicas: c.Replicas, MaxBytes: c.MaxBytes, Logger: slog.New(slog.DiscardHandler)}
	if c.Storage == "memory" {
		cfg.Storage = jetstream.MemoryStorage
	}
	if c.Cluster != "" || len(c.Tag) > 0 {
		cfg.Placement = &jetstream.Placement{Cluster: c.Cluster, Tags: c.Tag}
	}
	return cfg
}

func (c *initCmd) Run(g *session.Globals) error {
	cfg := c.config(g)
	if c.Print {
		sc, err := cfg.StreamConfig()
		if err != nil {
			return err
		}
		return show.WriteJSON(g.Out, sc)
	}
	s, err := g.Connect()
	if err != nil {
		return err
	}
	defer s.End()
	info, err := s.Bucket(g, cfg)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		err = c.make(g, s, cfg)
	case err == nil:
		err = c.repair(g, s, cfg, info)
	}
	if err != nil || c.History == 0 {
		return err
	}
	return c.history(g, s, cfg)
}

// make creates the missing bucket.
func (c *initCmd) make(g *session.Globals, s *session.Session, cfg kvstore.Config) error {
	asked := cfg.Replicas
	cfg.Replicas = cmp.Or(asked, s.Replicas())
	sc, err := cfg.StreamConfig()
	if err != nil {
		return err
	}
	fmt.Fprintf(g.Out, "bucket %s does not exist; to create at %s:\n", g.Bucket, s.Where())
	t := show.NewTable(g.Out)
	row := func(setting string, value any) { t.AppendRow(table.Row{"  " + setting, value}) }
	row("storage", strings.ToLower(sc.Storage.String()))
	row("num_replicas", sc.Replicas)
	if sc.MaxBytes > 0 {
		row("max_bytes", sc.MaxBytes)
	}
	if p := sc.Placement; p != nil {
		row("placement", strings.TrimSpace(p.Cluster+" "+strings.Join(p.Tags, " ")))
	}
	t.Render()
	if name := s.NC.ConnectedClusterName(); name != "" && sc.Replicas == 1 {
		fmt.Fprintln(g.Out, show.Alarm.Sprintf("one replica on cluster %s: locks stop when its server does; see --replicas", show.Plain(name)))
	}
	if err := c.confirm(g, "Create it?"); err != nil {
		return err
	}
	ctx, cancel := g.Bounded()
	defer cancel()
	open := func(replicas int) error {
		cfg.Replicas = replicas
		store, err := kvstore.Open(ctx, s.JS, cfg)
		if err == nil {
			store.Close()
		}
		return err
	}
	if asked > 0 {
		err = open(asked)
	} else {
		err = s.Replicated(open)
	}
	switch {
	case err != nil:
		return s.NotDone(err)
	case cfg.Replicas < sc.Replicas:
		fmt.Fprintf(g.Out, "created bucket %s with one replica: its server is not in a cluster\n", g.Bucket)
	default:
		fmt.Fprintf(g.Out, "created bucket %s\n", g.Bucket)
	}
	return nil
}

// change is a setting that an update would change.
type change struct{ setting, is, will string }

// repair updates the settings of an existing bucket.
func (c *initCmd) repair(g *session.Globals, s *session.Session, cfg kvstore.Config, info *kvstore.Info) error {
	if c.Storage == "" { // keep the current storage, even if it is memory
		cfg.Storage = info.Config.Storage
	}
	repaired, err := kvstore.Repaired(cfg, info)
	if err != nil {
		return err
	}
	changes, err := difference(info.Raw, repaired.Raw)
	if err != nil {
		return err
	}
	left, err := kvstore.Examine(cfg, repaired)
	if err != nil {
		return err
	}
	left = slices.DeleteFunc(left, func(f kvstore.Finding) bool { return f.Level == kvstore.Fine })
	unfit := slices.ContainsFunc(left, func(f kvstore.Finding) bool { return f.Level == kvstore.Unfit })
	if c.Storage != "" && cfg.Storage != info.Config.Storage {
		unfit = true
		left = append(left, kvstore.Finding{Level: kvstore.Unfit, Setting: "storage", Value: strings.ToLower(info.Config.Storage.String()),
			Want: c.Storage, Why: "not as requested", Remake: true})
	}
	if len(changes) > 0 {
		fmt.Fprintf(g.Out, "bucket %s at %s; to change:\n", g.Bucket, s.Where())
		showChanges(g.Out, changes)
	}
	showLeft(g.Out, session.StreamOf(cfg), left)
	switch {
	case len(changes) == 0 && unfit:
		return tool.Exitf(tool.ExitConfig, "bucket %s is not as required, and no update can change that", g.Bucket)
	case len(changes) == 0:
		fmt.Fprintf(g.Out, "bucket %s is as it should be: nothing to change\n", g.Bucket)
		return nil
	}
	if err := c.confirm(g, "Change it?"); err != nil {
		return err
	}
	if info, err = c.update(g, s, info.Config.Name, info.Raw, repaired.Raw); err != nil {
		return err
	}
	fmt.Fprintf(g.Out, "changed %s of bucket %s\n", show.Count(len(changes), "setting"), g.Bucket)
	// Check what the server returned, because an old server ignores settings it does not know.
	now, err := kvstore.Examine(cfg, info)
	unfit = unfit || slices.ContainsFunc(now, func(f kvstore.Finding) bool { return f.Level == kvstore.Unfit })
	if err == nil && unfit {
		return tool.Exitf(tool.ExitConfig, "bucket %s is still unfit for locks; see \"lockctl doctor\"", g.Bucket)
	}
	return err
}

func showChanges(w io.Writer, changes []change) {
	t := show.NewTable(w)
	for _, ch := range changes {
		t.AppendRow(table.Row{"  " + ch.setting, show.Plain(ch.is), "->", show.Plain(ch.will)})
	}
	t.Render()
}

// showLeft prints the settings that no update can change.
func showLeft(w io.Writer, stream string, left []kvstore.Finding) {
	if len(left) == 0 {
		return
	}
	fmt.Fprintln(w, "cannot be changed by an update:")
	t := show.NewTable(w)
	remake := false
	for _, f := range left {
		mark := "  "
		if f.Level == kvstore.Unfit {
			mark = show.Alarm.Sprint("! ")
		}
		t.AppendRow(table.Row{mark + f.Setting, show.Plain(f.Value), "should be " + f.Want, f.Why})
		remake = remake || f.Remake
	}
	t.Render()
	if remake {
		fmt.Fprintf(w, "To re-create the bucket, which ends every lock in it: stop its users, run\n"+
			"\"nats stream rm %s\" and then \"lockctl init\".\n", stream)
	}
}

// update changes the stream, unless someone else has changed it since its settings were shown.
func (c *initCmd) update(g *session.Globals, s *session.Session, stream string, shown, wanted any) (*kvstore.Info, error) {
	ctx, cancel := s.Unrefused(g.Timeout)
	defer cancel()
	now, err := ask(ctx, s, "STREAM.INFO."+stream, nil)
	if err != nil {
		return nil, s.NotDone(err)
	}
	since, err := difference(shown, now.Raw)
	if err != nil {
		return nil, err
	}
	if len(since) > 0 {
		return nil, tool.Exitf(tool.ExitConflict, "another user changed %s in the meantime: nothing was changed", since[0].setting)
	}
	body, err := json.Marshal(wanted)
	if err != nil {
		return nil, err
	}
	info, err := ask(ctx, s, "STREAM.UPDATE."+stream, body)
	if refusal, ok := errors.AsType[*jetstream.APIError](err); ok {
		// A replica with no room sends this error even after the leader has changed the stream.
		if now, err := ask(ctx, s, "STREAM.INFO."+stream, nil); err == nil {
			if left, err := difference(now.Raw, wanted); err == nil && len(left) == 0 {
				g.Complain("a server answered %q, but the bucket was changed; see \"lockctl doctor\"", refusal.Description)
				return now, nil
			}
		}
	}
	return info, s.NotDone(err)
}

// ask sends a JetStream API request about a stream and returns all of the stream's settings.
// nats.go would drop settings it does not know, and an update would then reset them.
func ask(ctx context.Context, s *session.Session, op string, body []byte) (*kvstore.Info, error) {
	m, err := s.NC.RequestWithContext(ctx, kvstore.API(s.JS)+op, body)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
		kvstore.Info
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return nil, err
	}
	if answer.Error != nil {
		return nil, answer.Error
	}
	return &answer.Info, nil
}

// confirm asks the user for confirmation. Without a terminal it returns an error, unless
// --force is set.
func (c *initCmd) confirm(g *session.Globals, question string) error {
	if c.Force {
		return nil
	}
	if console.Terminal(g.Stdin) == nil {
		return tool.Usagef("cannot ask for confirmation without a terminal; use --force to proceed")
	}
	fmt.Fprintf(g.Stderr, "%s [y/N] ", question)
	answer, err := bufio.NewReader(g.Stdin).ReadString('\n')
	if err != nil {
		fmt.Fprintln(g.Stderr)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return tool.Exitf(tool.ExitConflict, "nothing was changed")
}
