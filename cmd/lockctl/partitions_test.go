//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/partition"
	"github.com/natslock/locks/testutil"
)

// group has those fields of the --json output that the tests read.
type group struct {
	Group    string
	Count    int
	Unowned  int
	InMotion int `json:"in_motion"`
	Members  []struct {
		ID                   string
		Weight, Owned, Quota int
		PID                  int
		Meta                 map[string]string
	}
	Partitions []struct {
		Number   int
		Member   string
		Planned  string
		InMotion bool `json:"in_motion"`
		Waiting  int
		Holder   *struct{ Token uint64 }
		Unowned  *time.Time `json:"unowned_since"`
	}
}

var rootFlags = []string{"--user", "root", "--password", "p"}

// enlist acquires a membership lock the way a worker does. No worker runs, so no partition moves.
func enlist(t *testing.T, c *natslock.Client, name, id string, weight, count int) {
	t.Helper()
	take(t, c, name+".member."+id, natslock.TTL(time.Hour), natslock.Meta(map[string]string{
		"member": id, "weight": strconv.Itoa(weight), "partitions": strconv.Itoa(count), "address": "10.0.0.7",
	}))
}

func own(t *testing.T, c *natslock.Client, name string, number int, id string) *natslock.Lock {
	t.Helper()
	return take(t, c, fmt.Sprintf("%s.part.%d", name, number), natslock.TTL(time.Hour), natslock.Meta(map[string]string{"member": id}))
}

// TestPartitionsOfFormerProcess checks that a process that has left the group but is still working
// keeps its partitions, even if its successor has the same ID.
func TestPartitionsOfFormerProcess(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t)
	withBucket(t, s)
	before, now := client(t, s, natslock.WithOwner("before")), client(t, s, natslock.WithOwner("now"))
	own(t, before, "g", 0, "w")
	own(t, before, "g", 1, "w")
	enlist(t, now, "g", "w", 1, 3)
	own(t, now, "g", 2, "w")
	_, out, _ := run(t, s, "partitions", "g")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 8, out)
	require.Equal(t, "g: 3 partitions, 1 member, 0 unowned, 2 in motion", lines[0])
	require.Regexp(t, `^w +1 +1 +3 +now on .* 2$`, lines[3])
	require.Regexp(t, `^w \(leaving\) +- +2 +0 +before on .* 0-1$`, lines[4])
	require.Regexp(t, `^w \(leaving\) +w +0 +0-1$`, lines[7])
	code, out, _ := run(t, s, "check", "--partitions", "g", "--moving", "0")
	require.NotZero(t, code, out)
}

func TestPartitions(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfigText(userList(map[string]string{
		"some":  block(t, "team.ingest.>", "--own-only", "--role", "observer", "--inbox-prefix", "_INBOX_some"),
		"other": block(t, "other.>", "--own-only", "--role", "observer", "--inbox-prefix", "_INBOX_other"),
	})))
	withBucket(t, s, rootFlags...)
	root := enter(t, s, "root")
	c := root.client(t, natslock.WithOwner("worker"))
	enlist(t, c, "team.ingest", "w0", 2, 6)
	enlist(t, c, "team.ingest", "w1", 1, 6)
	var tokens []uint64
	for k, id := range []string{"w0", "w0", "w0", "w1", "gone"} { // nobody owns partition 5
		tokens = append(tokens, own(t, c, "team.ingest", k, id).Token())
	}
	take(t, c, "orders.1")
	show := func(args ...string) (code int, out, errs string) {
		return run(t, s, append([]string{"--user", "some", "--password", "p", "--inbox-prefix", "_INBOX_some", "partitions"}, args...)...)
	}

	code, out, errs := show("team.ingest")
	require.Zero(t, code, errs)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 10, out)
	require.Equal(t, "team.ingest: 6 partitions, 2 members, 1 unowned, 1 in motion", lines[0])
	require.Equal(t, []string{"MEMBER", "WEIGHT", "OWNED", "QUOTA", "OWNER", "JOINED", "PARTITIONS"}, strings.Fields(lines[2]))
	require.Regexp(t, `^w0 +2 +3 +4 +worker on \S+:\d+ +\S+ ago +0-2$`, lines[3])
	require.Regexp(t, `^w1 +1 +1 +2 +worker on \S+:\d+ +\S+ ago +3$`, lines[4])
	require.Regexp(t, `^gone \(leaving\) +- +1 +0 +worker on \S+:\d+ +- +4$`, lines[5])
	require.Equal(t, []string{"OWNER", "PLANNED", "WAITING", "PARTITIONS"}, strings.Fields(lines[7]))
	require.Regexp(t, `^nobody +w[01] +0 +5$`, lines[8])
	require.Regexp(t, `^gone +w[01] +0 +4$`, lines[9])

	_, out, _ = show("team.ingest", "--wide")
	lines = strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 14, out)
	require.Regexp(t, `^w0 .* address=10\.0\.0\.7$`, lines[3])
	require.Equal(t, []string{"PARTITION", "OWNER", "TOKEN", "HELD", "EXPIRES", "PLANNED", "WAITING"}, strings.Fields(lines[7]))
	require.Regexp(t, `^ +3 +w1 +`+uintString(tokens[3])+` +\S+ +\S+ +w1 +0$`, lines[11])
	require.Regexp(t, `^ +5 +nobody +- +- +- +w[01] +0$`, lines[13])

	code, out, errs = show("team.ingest", "--json")
	require.Zero(t, code, errs)
	var groups []group
	require.NoError(t, json.Unmarshal([]byte(out), &groups))
	require.Len(t, groups, 1)
	g := groups[0]
	require.Equal(t, []any{"team.ingest", 6, 1, 1}, []any{g.Group, g.Count, g.Unowned, g.InMotion})
	require.Equal(t, []int{2, 3, 4}, []int{g.Members[0].Weight, g.Members[0].Owned, g.Members[0].Quota})
	require.Equal(t, map[string]string{"address": "10.0.0.7"}, g.Members[0].Meta)
	require.Equal(t, tokens[4], g.Partitions[4].Holder.Token)
	require.True(t, g.Partitions[4].InMotion)
	require.False(t, g.Partitions[3].InMotion)
	require.Nil(t, g.Partitions[5].Holder)
	require.Nil(t, g.Partitions[5].Unowned, "not known")

	// A user who may read all locks sees all groups.
	code, out, errs = run(t, s, append(slices.Clone(rootFlags), "partitions")...)
	require.Zero(t, code, errs)
	require.Regexp(t, `^GROUP +PARTITIONS +MEMBERS +UNOWNED +IN MOTION\nteam\.ingest +6 +2 +1 +1\n$`, out)
	code, _, errs = show()
	require.Equal(t, 77, code, errs)
	require.Contains(t, errs, `name a group whose locks this user may read, as in "lockctl partitions ingest"`)
	code, _, errs = run(t, s, "--user", "other", "--password", "p", "--inbox-prefix", "_INBOX_other", "partitions", "team.ingest")
	require.Equal(t, 77, code, errs)
	require.Regexp(t, `^lockctl: partitions of "team\.ingest": list locks "team\.ingest\.member\.\*": .*permissions violation.*\n$`, errs)

	code, out, errs = show("team.ingest.x")
	require.Zero(t, code)
	require.Empty(t, out)
	require.Equal(t, "lockctl: no members in the group team.ingest.x\n", errs)
	code, out, _ = show("team.ingest.x", "--json")
	require.Zero(t, code)
	require.Equal(t, "[]\n", out)
	code, _, _ = show("team.*")
	require.Equal(t, 64, code)
	require.Equal(t, []string{"team.ingest"}, complete(t, s, "lockctl --user root --password p partitions t"))
}

// TestPartitionsWatch checks that --watch in a pipe prints the group after each change, even after
// an outage, and shows how long each unowned partition has been listed as unowned.
func TestPartitionsWatch(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := client(t, s)
	object := start(t, s, "partitions", "ingest", "--watch", "--json")
	text := start(t, s, "partitions", "ingest", "--watch")
	said(t, text, "no members in the group ingest")
	began := time.Now()
	own(t, c, "ingest", 0, "w0")
	enlist(t, c, "ingest", "w0", 1, 3)
	// state waits until the last line of JSON satisfies fits, and returns it.
	state := func(what string, fits func(g group) bool) (g group) {
		t.Helper()
		kit.Eventually(t, what, func() bool {
			lines := strings.Split(strings.TrimSpace(object.out.String()), "\n")
			return json.Unmarshal([]byte(lines[len(lines)-1]), &g) == nil && fits(g)
		})
		return g
	}
	first := state("two without an owner", func(g group) bool { return g.Unowned == 2 })
	require.Nil(t, first.Partitions[0].Unowned)
	require.WithinRange(t, *first.Partitions[2].Unowned, began.Add(-time.Second), time.Now())
	lock := own(t, c, "ingest", 1, "w0")
	next := state("one without an owner", func(g group) bool { return g.Unowned == 1 })
	require.Equal(t, first.Partitions[2].Unowned, next.Partitions[2].Unowned)
	require.Nil(t, next.Partitions[1].Unowned)
	require.NoError(t, lock.Unlock(timeout(t)))
	last := state("two again", func(g group) bool { return g.Unowned == 2 })
	require.Equal(t, first.Partitions[2].Unowned, last.Partitions[2].Unowned)
	require.True(t, last.Partitions[1].Unowned.After(*first.Partitions[1].Unowned))
	kit.Eventually(t, "the text of it", func() bool {
		return regexp.MustCompile(`nobody +w0 +0 +1-2 +\S+ or more\n\n$`).MatchString(text.out.String())
	})
	require.Regexp(t, `^\d\d:\d\d:\d\d\ningest: `, text.out.String())
	require.NotContains(t, text.out.String(), "\x1b")

	s.Stop()
	said(t, text, "no connection to nats://")
	said(t, text, "; trying again\n")
	s.Restart()
	said(t, text, "reconnected\n")
	own(t, c, "ingest", 2, "w0")
	require.Equal(t, last.Partitions[1].Unowned, state("the third", func(g group) bool { return g.Unowned == 1 }).Partitions[1].Unowned)
	object.signal(syscall.SIGTERM)
	require.Zero(t, object.wait())
	text.signal(syscall.SIGINT)
	require.Zero(t, text.wait())
}

// TestPartitionsOfWorkers lets real workers balance the group until no partition is in motion.
func TestPartitionsOfWorkers(t *testing.T) {
	t.Parallel()
	s := serve(t)
	ctx, cancel := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()
	for _, id := range []string{"w0", "w1"} {
		g := partition.New(client(t, s), "ingest", 8, partition.ID(id))
		workers.Go(func() {
			_ = g.Run(ctx, func(ctx context.Context, p *partition.Partition) error {
				select {
				case <-p.Leaving():
				case <-ctx.Done():
				}
				return nil
			})
		})
	}
	kit.Eventually(t, "a group at rest", func() bool {
		_, out, _ := run(t, s, "partitions", "ingest")
		return strings.HasPrefix(out, "ingest: 8 partitions, 2 members, 0 unowned, 0 in motion\n\n") &&
			len(regexp.MustCompile(`(?m)^w[01] +1 +4 +4 `).FindAllString(out, -1)) == 2 && strings.Count(out, "\n") == 5
	})
}
