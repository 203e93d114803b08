package main

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/kvstore"
)

// creation limits how long the server may take to create a stream.
const creation = 15 * time.Second

// history creates the history stream of an existing bucket, or updates its settings.
func (c *initCmd) history(g *session.Globals, s *session.Session, cfg kvstore.Config) error {
	bucket, err := s.Bucket(g, cfg)
	if err != nil {
		return err
	}
	wanted := kvstore.HistoryStream(&bucket.StreamInfo, c.History, c.HistorySize)
	ctx, cancel := s.Unrefused(g.Timeout)
	defer cancel()
	info, err := ask(ctx, s, "STREAM.INFO."+wanted.Name, nil)
	switch {
	case err == nil:
		return c.changeHistory(g, s, info, wanted)
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return s.NotDone(err)
	}
	fmt.Fprintf(g.Out, "to create a history of bucket %s: stream %s, for %s and at most %d bytes, num_replicas %d\n",
		g.Bucket, wanted.Name, show.Brief(c.History), wanted.MaxBytes, wanted.Replicas)
	if err := c.confirm(g, "Create it?"); err != nil {
		return err
	}
	// Start a new timeout, because the user may have taken a long time to answer. On a cluster
	// the server does not respond until the new stream has elected a leader, which can take
	// 9 s.
	ctx, cancel = s.Unrefused(max(g.Timeout, creation))
	defer cancel()
	if bucket, err = s.Bucket(g, cfg); err != nil {
		return err
	}
	if _, err := s.JS.CreateStream(ctx, kvstore.HistoryStream(&bucket.StreamInfo, c.History, c.HistorySize)); err != nil {
		return s.NotDone(err)
	}
	fmt.Fprintf(g.Out, "created the history of bucket %s\n", g.Bucket)
	return nil
}

// changeHistory updates the settings of an existing history stream.
func (c *initCmd) changeHistory(g *session.Globals, s *session.Session, info *kvstore.Info, wanted jetstream.StreamConfig) error {
	is, err := info.Settings()
	if err != nil {
		return err
	}
	to := maps.Clone(is)
	to["max_age"], to["num_replicas"] = wanted.MaxAge, wanted.Replicas
	if c.HistorySize > 0 {
		to["max_bytes"] = wanted.MaxBytes
	}
	changes, err := difference(is, to)
	if err != nil {
		return err
	}
	if len(changes) == 0 {
		fmt.Fprintf(g.Out, "the history of bucket %s is as it should be: nothing to change\n", g.Bucket)
		return nil
	}
	fmt.Fprintf(g.Out, "history of bucket %s; to change:\n", g.Bucket)
	showChanges(g.Out, changes)
	if err := c.confirm(g, "Change it?"); err != nil {
		return err
	}
	if _, err := c.update(g, s, wanted.Name, is, to); err != nil {
		return err
	}
	fmt.Fprintf(g.Out, "changed %s of the history of bucket %s\n", show.Count(len(changes), "setting"), g.Bucket)
	return nil
}
