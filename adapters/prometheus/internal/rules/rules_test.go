// Package rules tests the alerts and the dashboard of docs/operate with the Prometheus libraries.
// It contains only tests and is a separate module, because otherwise every service that uses the
// collector would depend on these libraries.
package rules

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
)

const operate = "../../../../docs/operate/"

// The tests check queries against the metrics in these golden files.
const (
	exporter = "../../cmd/natslock-exporter/testdata/metrics.txt"
	workers  = "../../testdata/partitions.txt" // metrics of services: see natslockprom.Partitions
)

// served returns the labels of each series in the golden files, keyed by the name that queries use.
func served(t *testing.T, files ...string) map[string][]string {
	t.Helper()
	var text []byte
	for _, file := range files {
		part, err := os.ReadFile(file)
		require.NoError(t, err)
		text = append(text, part...)
	}
	series := regexp.MustCompile(`^(\w+){(.*)} \S+$`)
	label := regexp.MustCompile(`(\w+)="`)
	all := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		found := series.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if found == nil {
			require.True(t, strings.HasPrefix(line, "# "), line)
			continue
		}
		all[found[1]] = nil
		for _, l := range label.FindAllStringSubmatch(found[2], -1) {
			all[found[1]] = append(all[found[1]], l[1])
		}
	}
	require.Greater(t, len(all), 10*len(files))
	return all
}

// check parses a query, requires that its metrics are served with the labels that it selects and
// groups by, and returns their names.
func check(t *testing.T, served map[string][]string, query string) (names []string) {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	require.NoError(t, err, query)
	labels := []string{}
	var used []string
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			require.Contains(t, served, n.Name, "no such metric: %s", query)
			names = append(names, n.Name)
			labels = append(labels, served[n.Name]...)
			for _, m := range n.LabelMatchers {
				if m.Name != model.MetricNameLabel {
					require.Contains(t, served[n.Name], m.Name, query)
				}
			}
		case *parser.AggregateExpr:
			used = append(used, n.Grouping...)
		}
		return nil
	})
	require.NotEmpty(t, names, query)
	require.Subset(t, labels, used, query)
	return names
}

// TestAlerts checks that Prometheus accepts the rules, that their metrics are served, and that
// their texts use only labels that the alert has.
func TestAlerts(t *testing.T) {
	text, err := os.ReadFile(operate + "alerts.yml")
	require.NoError(t, err)
	groups, errs := rulefmt.Parse(text, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	require.Empty(t, errs)
	metrics := served(t, exporter, workers)
	page, err := os.ReadFile(operate + "monitoring.md")
	require.NoError(t, err)
	var alerts []string
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			alerts = append(alerts, r.Alert)
			labels := []string{}
			for _, name := range check(t, metrics, r.Expr) {
				labels = append(labels, metrics[name]...)
			}
			for _, note := range []string{"summary", "description"} {
				require.NotEmpty(t, r.Annotations[note], r.Alert)
				for _, l := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(r.Annotations[note], -1) {
					require.Contains(t, labels, l[1], r.Alert)
				}
			}
			require.NotEmpty(t, r.Labels["severity"], r.Alert)
			require.Contains(t, string(page), "`"+r.Alert+"`", "monitoring.md does not explain it")
		}
	}
	for _, about := range []string{"NatslockHeldTooLong", "NatslockQueueTooLong", "NatslockExpiries", "NatslockRenewalsLate"} {
		require.Contains(t, alerts, about)
	}
}

// TestDashboard checks that the queries of all panels and variables parse and that their metrics
// are served. Each metric of the bucket must have a panel.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(operate + "dashboard.json")
	require.NoError(t, err)
	var board struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &board))
	require.NotEmpty(t, board.Panels)
	metrics := served(t, exporter)
	variables := []string{"__rate_interval"}
	values := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)
	for _, v := range board.Templating.List {
		variables = append(variables, v.Name)
		if v.Type == "query" {
			found := values.FindStringSubmatch(v.Definition)
			require.NotNil(t, found, v.Name)
			require.Contains(t, metrics[check(t, metrics, found[1])[0]], found[2], v.Name)
		}
	}
	shown := map[string]bool{}
	taken := map[string]string{}
	for _, p := range board.Panels {
		require.NotEmpty(t, p.Targets, p.Title)
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := fmt.Sprint(p.GridPos.X+x, " ", p.GridPos.Y+y)
				require.Empty(t, taken[cell], "%s lies over another panel", p.Title)
				taken[cell] = p.Title
			}
		}
		for _, target := range p.Targets {
			for _, v := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				require.Contains(t, variables, v[1], p.Title)
			}
			query := strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
			for _, name := range check(t, metrics, query) {
				shown[name] = true
			}
		}
	}
	for name := range metrics {
		if !strings.HasSuffix(name, "_seconds_sum") && !strings.HasSuffix(name, "_seconds_count") {
			require.True(t, shown[name], "no panel shows %s", name)
		}
	}
}

// TestCheck checks that check accepts a metric that the exporter serves, and that the metrics of
// other programs are not among those served.
func TestCheck(t *testing.T) {
	metrics := served(t, exporter)
	require.True(t, slices.Contains(metrics["natslock_bucket_held"], "lock"))
	require.Equal(t, []string{"natslock_bucket_held"}, check(t, metrics, `sum by (lock) (natslock_bucket_held{bucket="a"})`))
	require.NotContains(t, metrics, "natslock_held", "the metric of another program")
}
