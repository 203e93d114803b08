//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// roles maps each user in the table of exits to the arguments of "lockctl perms".
var roles = map[string][]string{
	"user": {"orders.>", "--own-only"}, "reader": {"orders.>"},
	"observer": {"--role", "observer"}, "some": {"orders.>", "--own-only", "--role", "observer"},
	"operator": {"--role", "operator"}, "team": {"orders.>", "--role", "operator"},
	"admin": {"--role", "admin"}, "lead": {"orders.>", "--role", "admin", "--history"},
}

// exit is a row of the table of exits.
type exit struct {
	page string // the command's name on the page, or "" if the page omits the row
	json string // output of --json: array, object, or lines of objects, or "" without --json
	args string
	may  string // roles with permission
	code int    // exit code for these roles, with a leader and a fit bucket
}

// These are the roles in exit.may. A user who may break locks can write records, and can therefore
// take a free lock too.
const (
	all     = "user reader observer some operator team admin lead"
	takes   = "user reader operator team admin lead"
	waits   = "user reader admin lead"
	anyName = "operator admin"
	lists   = "reader observer operator team admin lead" // all locks at once
)

// exits lists the exit codes of each command. docs/operate/exit-codes.md shows them as a table.
var exits = []exit{
	{"ls", "array", "ls orders.>", all, 0},
	{"", "array", "ls", lists, 0},
	{"info", "array", "info orders.held", all, 0},
	{"", "array", "info orders.free", all, 0},
	{"", "array", "info users.held", "observer operator admin", 0},
	{"partitions", "array", "partitions orders.g", all, 0},
	{"", "array", "partitions", lists, 0},
	{"check", "array", "check orders.> --held 2h", all, 0},
	{"check beyond a limit", "array", "check orders.> --held 1ns --all", all, 1},
	{"", "array", "check --partitions orders.g --unowned 0", all, 1},
	{"watch", "lines", "watch orders.>", all, 0},
	{"partitions --watch", "lines", "partitions orders.g --watch", all, 0},
	{"top", "", "top orders.>", all, 0},
	{"history", "lines", "history orders.held", "observer lead", 0},
	{"run", "", "run -n orders.new -- true", takes, 0},
	{"", "", "run -n users.new -- true", anyName, 0},
	{"run -n, not free", "", "run -n orders.held -- true", takes, 1},
	{"run -w, not free", "", "run -w 1 orders.held -- true", waits, 1},
	{"", "", "run -w 1 users.held -- true", "admin", 1},
	{"", "", "run --read -n orders.r -- true", takes, 0},
	{"", "", "run --write -n orders.r -- true", takes, 0},
	{"", "", "run --permits 2 -n orders.p -- true", takes, 0},
	{"", "", "run --permits 2 -n users.p -- true", anyName, 0},
	{"elect --once", "", "elect --once orders.e -- true", takes, 0},
	{"", "", "elect --once users.e -- true", anyName, 0},
	{"acquire -n, not free", "object", "acquire -n orders.held", takes, 1},
	{"extend", "object", "extend orders", takes, 0},
	{"release", "", "release orders", takes, 0},
	{"", "", "release users", anyName, 0},
	{"break", "", "break -f --now orders.b", takes, 0},
	{"", "", "break -f --now users.b", anyName, 0},
	{"doctor", "object", "doctor orders.>", all, 0},
	{"init, nothing to do", "", "init -f", all, 0},
	{"init", "", "init -f --max-bytes 100000000", "admin lead", 0},
	{"", "", "init -f --history 6d", "lead", 0},
	{"perms", "object", "perms orders.>", all, 0},
}

// led returns the exit code for a role while the bucket has a leader.
func (e exit) led(role string) int {
	if slices.Contains(strings.Fields(e.may), role) {
		return e.code
	}
	return 77
}

// leaderless returns the exit code while the bucket has lost its majority. Permissions cannot be
// checked then, so it is the same for all roles.
func (e exit) leaderless(string) int {
	if e.command() == "perms" {
		return 0
	}
	return 69
}

// unfit returns the exit code while a setting of the bucket prevents clients from granting locks.
func (e exit) unfit(role string) int {
	switch {
	case e.command() == "perms":
		return 0
	case e.command() == "init" && (role == "lead" || role == "admin" && !strings.Contains(e.args, "--history")): // repairs the setting
		return 0
	case e.command() == "init":
		return 77
	}
	return 78
}

func (e exit) command() string { return strings.Fields(e.args)[0] }

// printed checks the output of a command with --json. The doctor prints its findings even when it
// fails, and so does check when a limit is exceeded.
func (e exit) printed(t *testing.T, role string, code int, out string) {
	t.Helper()
	ended := code == 0 || code == 1 && e.command() == "check" || e.command() == "doctor"
	switch {
	case e.json == "":
	case !ended: // nothing that a script could mistake for a result
		require.Empty(t, out, "%s: %s", role, e.args)
	case ended && e.json == "lines":
		for line := range strings.Lines(out) {
			require.NoError(t, json.Unmarshal([]byte(line), &map[string]any{}), "%s: %s: %s", role, e.args, line)
		}
	case ended && e.json == "array":
		require.NoError(t, json.Unmarshal([]byte(out), &[]any{}), "%s: %s: %s", role, e.args, out)
	case ended:
		require.NoError(t, json.Unmarshal([]byte(out), &map[string]any{}), "%s: %s: %s", role, e.args, out)
	}
}

const exitsPage = "../../docs/operate/exit-codes.md"

// TestExitsPage checks that the page shows the table of exits, whose codes TestExits verifies. With
// -update the test rewrites it.
func TestExitsPage(t *testing.T) {
	const begins, ends = "<!-- Written by \"make docs\". -->\n", "<!-- The end of what is written. -->\n"
	written, err := os.ReadFile(exitsPage)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(written), begins)
	require.True(t, found)
	_, after, found := strings.Cut(rest, ends)
	require.True(t, found)
	page := before + begins + exitsTable() + ends + after
	if *update {
		require.NoError(t, os.WriteFile(exitsPage, []byte(page), 0o644))
		return
	}
	require.Equal(t, page, string(written), "the page is out of date: make docs")
}

// exitsTable returns the table as Markdown. Commands with identical cells share a row.
func exitsTable() string {
	shown := []string{"reader", "observer", "operator", "admin"}
	state := func(code func(string) int) string { // all roles have the same code, except perhaps the admin
		if most, admin := code("reader"), code("admin"); most != admin {
			return fmt.Sprintf("%d, admin %d", most, admin)
		}
		return fmt.Sprint(code("reader"))
	}
	names := map[string][]string{}
	var rows []string
	for _, e := range exits {
		if e.page == "" {
			continue
		}
		var row strings.Builder
		for _, role := range shown {
			fmt.Fprintf(&row, " %d |", e.led(role))
		}
		what := e.json
		if what == "" {
			what = "–"
		}
		fmt.Fprintf(&row, " %s | %s | %s |", state(e.leaderless), state(e.unfit), what)
		if names[row.String()] == nil {
			rows = append(rows, row.String())
		}
		name, why, _ := strings.Cut(e.page, ", ")
		if name = "`" + name + "`"; why != "" {
			name += " (" + why + ")"
		}
		names[row.String()] = append(names[row.String()], strings.Replace(name, " beyond a limit`", "` (beyond a limit)", 1))
	}
	table := "| command | user | observer | operator | admin | no leader | unfit | `--json` |\n|---|---|---|---|---|---|---|---|\n"
	for _, row := range rows {
		table += "| " + strings.Join(names[row], ", ") + " |" + row + "\n"
	}
	return table
}

// TestExits runs each command as each role that "lockctl perms" prints, on three servers that
// require client certificates, in one of two accounts. With a leader, each command does what the
// role may do and names the missing permission otherwise. Without a majority, and in an unfit
// bucket, it says so and prints nothing that could be mistaken for a result.
func TestExits(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	dir := t.TempDir()
	authority := newAuthority(t, dir)
	serverCert, serverKey := authority.issue("server")
	cert, key := authority.issue("client")
	users := func(account string) string {
		text := fmt.Sprintf("{ user: root%s, password: p }\n", account)
		for role, args := range roles {
			text += fmt.Sprintf("{ user: %s%s, password: p\n%s}\n", role, account, block(t, append(slices.Clone(args), "--inbox-prefix", "_INBOX_"+role)...))
		}
		return text
	}
	c := testutil.RunCluster(t, 3, testutil.WithConfigText(fmt.Sprintf(
		"tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }\naccounts { A { jetstream: enabled, users: [ %s ] }, B { jetstream: enabled, users: [ %s ] } }",
		serverCert, serverKey, authority.file, users("A"), users("B"))))
	as := func(role, account string, args ...string) (code int, out, errs string) {
		all := []string{"-s", c.URLs(), "--tlscert", cert, "--tlskey", key, "--tlsca", authority.file, "--user", role + account, "--password", "p"}
		if role != "root" {
			all = append(all, "--inbox-prefix", "_INBOX_"+role)
		}
		all = append(all, args...)
		switch {
		case args[0] == "top":
			v := display(t, c.Servers()[0], nil, all...)
			v.until("locks, or the end", func(text string) bool {
				return strings.Contains(text, "connected") && strings.Contains(text, "orders.held") || strings.Contains(text, "lockctl: ")
			})
			v.press("q")
			return v.ends(), "", strings.Join(strings.Fields(v.text()), " ")
		case args[0] == "watch" || slices.Contains(args, "--watch"):
			p := start(t, nil, all...)
			kit.Eventually(t, "a watch, or its end", func() bool {
				return p.out.String() != "" || p.err.String() != ""
			})
			if text := p.err.String(); text == "" || strings.Contains(text, "watching") {
				p.signal(syscall.SIGINT)
			}
			code = p.wait()
			return code, p.out.String(), p.err.String()
		}
		return run(t, nil, all...)
	}
	root := func(args ...string) string {
		t.Helper()
		code, out, errs := as("root", "A", args...)
		require.Zero(t, code, "%q: %s", args, errs)
		return strings.TrimSpace(out)
	}
	root("init", "-f", "--history", "7d")
	for _, name := range []string{"orders.held", "users.held"} {
		root("acquire", name, "--ttl", "1h")
	}
	nc := c.ConnectTo(0, nats.UserInfo("rootA", "p"), nats.ClientCert(cert, key), nats.RootCAs(authority.file))
	worker, err := natslock.New(t.Context(), nc, natslock.WithCreate(false))
	require.NoError(t, err)
	enlist(t, worker, "orders.g", "w0", 1, 3)
	script := root("acquire", "orders.script", "--ttl", "1h")
	words := func(e exit, handle string) []string {
		args := strings.Fields(e.args)
		if args[0] == "extend" || args[0] == "release" {
			args[1] = handle
		}
		if e.json != "" {
			args = append(args, "--json")
		}
		return args
	}

	js, err := jetstream.New(nc)
	require.NoError(t, err)
	caughtUp := func() {
		t.Helper()
		kit.Eventually(t, "all replicas have all records", func() bool {
			stream, err := js.Stream(t.Context(), "KV_natslock")
			return err == nil && !slices.ContainsFunc(stream.CachedInfo().Cluster.Replicas, func(p *jetstream.PeerInfo) bool {
				return !p.Current || p.Lag > 0
			})
		})
	}
	for _, e := range exits {
		for role := range roles {
			var handle string
			switch last := e.args[strings.LastIndex(e.args, " ")+1:]; {
			case e.command() == "break":
				handle = root("acquire", last, "--ttl", "1h")
			case e.command() == "extend", e.command() == "release":
				handle = root("acquire", last+".s", "--ttl", "1h")
			case e.command() == "init" && e.args != "init -f": // give it something to change, in either direction
				root("init", "-f", "--max-bytes", "200000000", "--history", "7d")
			}
			if slices.Contains(roles[role], "--own-only") {
				caughtUp() // a lagging replica has no reply for a user who may not ask the leader: see "lockctl perms --help"
			}
			want := e.led(role)
			code, out, errs := as(role, "A", words(e, handle)...)
			said := out + errs // includes the rows of a doctor
			require.Equal(t, want, code, "%s: %s: %s", role, e.args, said)
			e.printed(t, role, code, out)
			if want != 77 {
				require.NotContains(t, errs, "ermission", "%s: %s", role, e.args)
			} else {
				require.Regexp(t, `(Publish|Subscription) to "|refused to .*: publish to `, said, "%s: %s", role, e.args)
				require.LessOrEqual(t, strings.Count(errs, "\n"), 1, "%s: %s: %s", role, e.args, errs)
			}
			if handle != "" && (want == 77 || e.command() == "extend") {
				root("release", handle)
			}
		}
	}

	// The other account has neither the bucket nor the locks.
	code, _, errs := as("user", "B", "ls", "orders.>")
	require.Equal(t, 78, code, errs)
	require.Contains(t, errs, "there is no bucket natslock")
	code, _, errs = as("admin", "B", "init", "-f")
	require.Zero(t, code, errs)
	code, out, errs := as("user", "B", "run", "-n", "orders.held", "--", "echo", "inside")
	require.Zero(t, code, errs)
	require.Equal(t, "inside\n", out)

	// The bucket loses its majority.
	c.StopServer(1)
	c.StopServer(2)
	for _, name := range []string{"KV_natslock", "HISTORY_natslock"} { // a leader notices some time later
		kit.Eventually(t, "no leader of "+name, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			stream, err := js.Stream(ctx, name)
			return err != nil || stream.CachedInfo().Cluster.Leader == ""
		})
	}
	for _, e := range exits {
		var beside sync.WaitGroup
		for role := range roles {
			beside.Go(func() {
				code, out, errs := as(role, "A", append(words(e, script), "--timeout", "2s")...)
				assert.Equal(t, e.leaderless(role), code, "%s: %s: %s", role, e.args, errs)
				e.printed(t, role, code, out)
				assert.LessOrEqual(t, strings.Count(errs, "\n"), 1, "%s: %s: %s", role, e.args, errs)
			})
		}
		beside.Wait()
	}
	c.Restart(1)
	c.Restart(2)
	kit.Eventually(t, "a leader", func() bool {
		code, _, _ := as("root", "A", "ls")
		return code == 0
	})

	for _, e := range exits {
		for role := range roles {
			stream, err := js.Stream(t.Context(), "KV_natslock")
			require.NoError(t, err)
			if cfg := stream.CachedInfo().Config; cfg.MaxMsgsPerSubject == 1 { // at the beginning and after each init
				cfg.MaxMsgsPerSubject = 2
				_, err = js.UpdateStream(t.Context(), cfg)
				require.NoError(t, err)
			}
			code, out, errs := as(role, "A", words(e, script)...)
			require.Equal(t, e.unfit(role), code, "%s: %s: %s", role, e.args, errs)
			e.printed(t, role, code, out)
		}
	}
}
