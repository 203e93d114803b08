package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// scraper is a Prometheus that scrapes an exporter and evaluates the alerts of docs/operate.
type scraper struct {
	t    *testing.T
	base string
}

// soon speeds up the rules by turning each minute into a second. It also shortens the thresholds to
// 6 s for a hold and 3 s for a wait.
func soon(t *testing.T, rules string) string {
	t.Helper()
	for threshold, short := range map[string]string{"hold_seconds) > 3600\n": "hold_seconds) > 6\n", "wait_seconds) > 300\n": "wait_seconds) > 3\n"} {
		require.Contains(t, rules, threshold)
		rules = strings.ReplaceAll(rules, threshold, short)
	}
	return regexp.MustCompile(`(for: |\[)\d+[smh]`).ReplaceAllStringFunc(rules, func(duration string) string {
		number := strings.IndexAny(duration, "0123456789")
		d, err := time.ParseDuration(duration[number:])
		require.NoError(t, err)
		return fmt.Sprintf("%s%dms", duration[:number], (d / 60).Milliseconds())
	})
}

// watched starts a Prometheus that scrapes the exporter until the test ends.
func watched(t *testing.T, p *process) *scraper {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("no prometheus on this machine: ", err)
	}
	dir := t.TempDir()
	rules, err := os.ReadFile("../../../../docs/operate/alerts.yml")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "alerts.yml"), []byte(soon(t, string(rules))), 0o600))
	p.get("/healthz")
	config := fmt.Sprintf("global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [alerts.yml]\n"+
		"scrape_configs: [{job_name: locks, static_configs: [{targets: [%q]}]}]\n", strings.TrimPrefix(p.base, "http://"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600))
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	require.NoError(t, free.Close())
	log := &kit.Log{}
	cmd := exec.Command(program, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return &scraper{t, "http://" + address}
}

// evaluation holds the time of Prometheus's last evaluation and the alerts that fire since then,
// each with the value of its lock label.
type evaluation struct {
	at     time.Time
	firing []string
}

func (m *scraper) evaluated() (e evaluation, err error) {
	answer, err := http.Get(m.base + "/api/v1/rules")
	if err != nil {
		return e, err
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer answer.Body.Close()
	var body struct {
		Data struct {
			Groups []struct {
				Name           string
				LastEvaluation time.Time
				Rules          []struct {
					LastError string
					Alerts    []struct {
						State  string
						Labels struct{ Alertname, Lock string }
					}
				}
			}
		}
	}
	err = json.NewDecoder(answer.Body).Decode(&body)
	for _, group := range body.Data.Groups {
		if group.Name == "natslock" {
			e.at = group.LastEvaluation
		}
		for _, rule := range group.Rules {
			require.Empty(m.t, rule.LastError)
			for _, a := range rule.Alerts {
				if a.State == "firing" {
					e.firing = append(e.firing, strings.TrimSpace(a.Labels.Alertname+" "+a.Labels.Lock))
				}
			}
		}
	}
	slices.Sort(e.firing)
	return e, err
}

// fires waits until exactly these alerts have fired for more consecutive evaluations than any
// rule's "for" takes.
func (m *scraper) fires(want ...string) {
	m.t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	var last evaluation
	for same, limit := 0, time.Now().Add(patience); time.Now().Before(limit); <-tick.C {
		e, err := m.evaluated()
		switch {
		case err != nil || !slices.Equal(e.firing, want):
			same = 0
		case !e.at.Equal(last.at):
			same++
		}
		if last = e; same > 12 {
			return
		}
	}
	require.Fail(m.t, "other alerts", "%q fire, wanted %q", last.firing, want)
}

// TestAlertsOfOutage checks that while the majority is down, one of the shipped alerts says that
// nobody gets a lock, and another that nothing is known about the locks. A lost server out of
// three, a long hold and a long wait each have an alert of their own. A leader that stays in office
// and its standby raise none.
func TestAlertsOfOutage(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	cluster := testutil.RunCluster(t, 3)
	c := clientOn(t, cluster.ConnectTo(0), natslock.WithTTL(5*time.Minute))
	standby := clientOn(t, cluster.ConnectTo(0), natslock.WithTTL(5*time.Minute))
	p := launch(t, "--server="+cluster.URLs())
	m := watched(t, p)
	leader, err := election.New(c, "scheduler.main").Campaign(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { runtime.KeepAlive(leader) })
	go func() { _, _ = election.New(standby, "scheduler.main").Campaign(t.Context()) }()
	p.shows(`natslock_bucket_held{lock="scheduler"} 1`, `natslock_bucket_queued{lock="scheduler"} 1`)
	long := hold(t, c, "orders.1") // acquired after the leader
	next := later(t, standby, "orders.1")
	m.fires("NatslockHeldTooLong orders", "NatslockWaitTooLong orders")
	unlock(t, long)
	unlock(t, <-next)
	m.fires()

	cluster.StopServer(2)
	p.shows(`natslock_bucket_replicas 3`, `natslock_bucket_replicas_current 2`)
	m.fires("NatslockReplicaMissing")
	cluster.StopServer(1)
	m.fires("NatslockNoLeader", "NatslockUnwatched")
	cluster.Restart(1)
	cluster.Restart(2)
	m.fires()
	require.Zero(t, p.stop())
	m.fires("NatslockUnwatched")
}

// TestAlertsOfRestore checks that the alerts of an outage also fire for a bucket restored from a
// backup, until the bucket is created again.
func TestAlertsOfRestore(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	s := testutil.RunServer(t)
	restore := outdate(t, s)
	p := follow(t, s)
	m := watched(t, p)
	m.fires()
	restore()
	m.fires("NatslockNoLeader", "NatslockUnwatched")
	deleteBucket(t, s)
	clientOn(t, s.Connect()) // creates the bucket
	m.fires()
}
