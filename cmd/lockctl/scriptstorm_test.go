//go:build unix

package main_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/testutil"
)

// storm is a script that runs through steps, takes a lock in each and prints what happens to it.
// While it holds the lock it creates a directory, or a file if it is a reader, which reveals any
// other holder.
const storm = `
say() { echo "$1 $id"; }
enter() {
	case $flags in
	--read) : > "$dir/r.$id"; [ -d "$dir/rw.$name" ] && say BESIDE_A_WRITER ;;
	*) mkdir "$dir/$key" || say BESIDE_ANOTHER
		case $flags in --write) set -- "$dir"/r.*; [ -e "$1" ] && say BESIDE_A_READER ;; esac ;;
	esac
	[ $(($(date +%s) - began)) -lt 3 ] || say SLOW
}
leave() {
	case $flags in --read) rm "$dir/r.$id" ;; *) rmdir "$dir/$key" ;; esac
}
step() {
	flags=$1 name=$2 how=$3
	H=$("$lockctl" acquire $flags "$name" --ttl 4s) || { echo "acquire failed: $?"; exit 1; }
	began=$(date +%s) key=$(echo "$H" | cut -d: -f2) id=$(echo "$H" | cut -d: -f3)
	say granted
	case $flags in --write) say writes ;; esac
	enter
	for act in $how; do
		case $act in
		extend) "$lockctl" extend "$H" >/dev/null && say renewed || say "extend-$?" ;;
		break) "$lockctl" break -f --id "$id" "$name" >/dev/null && say broken ;;
		now) leave; "$lockctl" break -f --now --id "$id" "$name" >/dev/null && say broken ;;
		release) leave; "$lockctl" release "$H" 2>/dev/null && say released || say "release-$?" ;;
		forget) leave; say forgotten ;;
		esac
	done
}
`

// saying matches a line that the storm prints about a claim.
var saying = regexp.MustCompile(`^([-\w]+) ([A-Z2-7]{26})\n$`)

// ends lists what a script may do with a lock.
var ends = []string{
	"release", "extend release", "extend extend extend release", "forget", "extend forget",
	"break release", "extend break extend release", "now", "extend now release",
}

// claims counts how often each thing has happened to each claim, by the claim's ID.
type claims map[string]map[string]int

func (c claims) add(id, what string) {
	if c[id] == nil {
		c[id] = make(map[string]int)
	}
	c[id][what]++
}

// total returns how often a thing has happened to all claims together.
func (c claims) total(what string) (n int) {
	for _, one := range c {
		n += one[what]
	}
	return n
}

// TestScriptStorm lets many scripts acquire, extend, release and forget locks of all kinds while an
// operator breaks some, and checks that history, watch, check and the exporter agree with what the
// scripts print.
func TestScriptStorm(t *testing.T) {
	tier.Proof(t)
	s := remembered(t)
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	metrics := exporter(t, s)
	watching := start(t, s, "watch", "storm.>", "--json", "--verbose")
	kit.Eventually(t, "a watch", func() bool { return strings.Contains(watching.err.String(), "watching storm") })

	dir := t.TempDir()
	sorts := []string{"'' storm.m", "--write storm.rw", "--read storm.rw", "'--permits 2' storm.s"}
	var scripts []*script
	for range 6 {
		text := "dir=" + dir + storm
		for range 8 {
			text += fmt.Sprintf("step %s '%s'\n", sorts[random.IntN(len(sorts))], ends[random.IntN(len(ends))])
		}
		scripts = append(scripts, startScript(t, s, text))
	}
	said, writers := make(claims), make(map[string]bool)
	for _, p := range scripts {
		p.waitFor(3 * kit.Patience)
		require.Zero(t, p.cmd.ProcessState.ExitCode(), p.out)
		require.NotContains(t, p.out.String(), "BESIDE")
		for line := range strings.Lines(p.out.String()) {
			if m := saying.FindStringSubmatch(line); m != nil { // other lines are from lockctl, which reports that it waits
				said.add(m[2], m[1])
				writers[m[2]] = writers[m[2]] || m[1] == "writes"
			}
		}
	}

	kit.Eventually(t, "the end of what was forgotten", func() bool { return len(locks(t, s, "ls", "storm.>")) == 0 })
	for _, flags := range [][]string{{"storm.m"}, {"storm.rw", "--read"}, {"storm.s", "--permits", "2"}} {
		h := word(t, s, append([]string{"acquire", "--ttl", "10m"}, flags...)...)
		said.add(strings.Split(h, ":")[2], "granted")
	}
	code, out, _ := run(t, s, "check", "--all", "storm.>", "--held", "1ms")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "; and 2 locks more")

	// want counts how each claim should have ended according to its script.
	want := make(claims)
	for id, did := range said {
		want.add(id, "granted")
		for range did["renewed"] {
			want.add(id, "renewed")
		}
		switch {
		case did["broken"] > 0:
			want.add(id, "broken")
		case did["released"] > 0:
			want.add(id, "released")
		case did["forgotten"] > 0, did["release-75"] > 0:
			want.add(id, "expired")
		}
	}
	t.Logf("%d claims, %d extends, %d releases, %d breaks, %d expiries", len(want), want.total("renewed"), want.total("released"), want.total("broken"), want.total("expired"))
	for _, end := range []string{"renewed", "released", "broken", "expired"} {
		require.Positive(t, want.total(end), end)
	}

	// The record of a broken claim ends separately, so it has a second end.
	ended := func(got claims) {
		t.Helper()
		for id, did := range got {
			for what, n := range did {
				if want[id]["broken"] > 0 && (what == "released" || what == "expired") {
					require.LessOrEqual(t, n, 1, "%s: %v", id, did)
					continue
				}
				if what == "renewed" && writers[id] { // a writer renews its gate while it waits for readers
					require.GreaterOrEqual(t, n, want[id][what], id)
					continue
				}
				require.Equal(t, want[id][what], n, "%s: %s, of %v; %v", id, what, did, want[id])
			}
		}
	}
	var seen claims
	kit.Eventually(t, "the last event", func() bool {
		seen = holdsOf(t, strings.NewReader(watching.out.String()))
		return seen.total("granted") == len(want) && seen.total("expired") >= want.total("expired") && seen.total("released") >= want.total("released")
	})
	ended(seen)
	require.GreaterOrEqual(t, seen.total("renewed"), want.total("renewed"))
	require.Equal(t, want.total("broken"), seen.total("broken"))

	copied(t, s)
	var kept claims
	var missed int
	kit.Eventually(t, "the history agrees with the watch", func() bool { // the record of a broken claim may end between the two reads
		_, out, _ = run(t, s, "history", "storm.>", "--json", "--verbose")
		seen, kept, missed = holdsOf(t, strings.NewReader(watching.out.String())), holdsOf(t, strings.NewReader(out)), missedOf(t, out)
		for _, what := range []string{"granted", "renewed", "released", "expired", "broken"} {
			if d := seen.total(what) - kept.total(what); max(d, -d) > missed {
				return false
			}
		}
		return true
	})
	t.Logf("the history lacks %d writes", missed)
	if missed == 0 {
		ended(kept)
	}

	kit.Eventually(t, "the metrics", func() bool {
		m := metrics()
		seen = holdsOf(t, strings.NewReader(watching.out.String()))
		return m["grants_total"] == len(want) && m["held"] == 3 && m["breaks_total"] == want.total("broken") && m["expiries_total"] == seen.total("expired")
	})
}

// waitFor waits up to d for a long script to exit.
func (p *script) waitFor(d time.Duration) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(d):
		p.t.Fatalf("the script does not end: %s", p.out)
	}
}

// holdsOf counts the events of holders in the output of watch or history.
func holdsOf(t *testing.T, out io.Reader) claims {
	t.Helper()
	all := make(claims)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var ev struct{ Event, ID string }
		if json.Unmarshal(lines.Bytes(), &ev) != nil {
			continue // an incomplete line
		}
		switch ev.Event {
		case "granted", "renewed", "released", "expired", "broken":
			all.add(ev.ID, ev.Event)
		}
	}
	return all
}

// missedOf returns the number of writes that a history reports as missing after its beginning.
func missedOf(t *testing.T, out string) (n int) {
	t.Helper()
	for line := range strings.Lines(out) {
		var ev event
		require.NoError(t, json.Unmarshal([]byte(line), &ev))
		if ev.Event == "gap" && ev.Missed != nil && ev.Name == "" {
			n += int(*ev.Missed)
		}
	}
	return n
}

// exporter builds and starts the exporter, waits until it follows the bucket, and returns a
// function that reads the metrics of the storm.
func exporter(t *testing.T, s *testutil.Server) func() map[string]int {
	t.Helper()
	path := filepath.Join(t.TempDir(), "natslock-exporter")
	build := exec.Command("go", "build", "-o", path, "./cmd/natslock-exporter")
	build.Dir = "../../adapters/prometheus"
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	cmd := exec.Command(path, "--listen=127.0.0.1:0", "--no-page", "--server="+s.URL(), "--pattern=storm.>")
	cmd.Env = append(cleanEnv(), "XDG_CONFIG_HOME="+t.TempDir())
	log := &kit.Log{}
	cmd.Stderr = log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() })
	kit.Eventually(t, "an exporter", func() bool { return strings.Contains(log.String(), "following the bucket") })
	url := regexp.MustCompile(`url=(http://\S+/metrics)`).FindStringSubmatch(log.String())[1]
	metric := regexp.MustCompile(`(?m)^natslock_bucket_(\w+){bucket="natslock",lock="storm.>"} (\d+)$`)
	return func() map[string]int {
		answer, err := http.Get(url)
		require.NoError(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		all := make(map[string]int)
		for _, m := range metric.FindAllStringSubmatch(string(text), -1) {
			all[m[1]], _ = strconv.Atoi(m[2])
		}
		return all
	}
}
