package topologies_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/testutil"
)

// network is a running topology.
type network struct {
	places []place // the first has the bucket
	opts   []natslock.Option
	slow   time.Duration // round trip on the slowest path
	silent bool          // no notification reaches the last place
}

func (n network) last() place       { return n.places[len(n.places)-1] }
func (n network) place(i int) place { return n.places[i%len(n.places)] }

// open opens the bucket from the place, independently of the clients.
func (p place) open(nc *nats.Conn) (*kvstore.Store, error) {
	js, err := jetstream.New(nc)
	if p.js != nil {
		js, err = p.js(nc)
	}
	if err != nil {
		return nil, err
	}
	return kvstore.Open(context.Background(), js, kvstore.Config{NoCreate: true})
}

func errIs(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(t error) bool { return errors.Is(err, t) })
}

var scenarios = []struct {
	name string
	run  func(*testing.T, network)
}{
	{"uncontended", uncontended},
	{"one shot", oneShot},
	{"hand over", handOver},
	{"bounded wait", boundedWait},
	{"breaking", breaking},
	{"deleted", deleted},
	{"gone", gone},
	{"renewing", renewing},
	{"inspecting", inspecting},
	{"counting", counting},
	{"reading and writing", readingAndWriting},
	{"reader gone", readerGone},
	{"reading and counting", readingAndCounting},
}

// topologies are the rows of docs/operate/topologies.md.
var topologies = []struct {
	name  string
	build func(*testing.T) network
}{
	{"one server", single},
	{"three replicas", cluster},
	{"leaf without JetStream", leaf},
	{"leaf with its own domain", leafDomain},
	{"two accounts", accounts},
	{"two accounts without notifications", withoutNotices},
	{"gateway", gateway},
	{"mirror", mirrored},
	{"slow link", slowLink},
}

// TestTopologies runs the scenarios of both locks in every topology. The topologies run one after
// another, because their servers would take time from the scenarios being measured.
func TestTopologies(t *testing.T) {
	tier.Proof(t)
	for _, top := range topologies {
		t.Run(top.name, func(t *testing.T) {
			runAll(t, top.build(t))
		})
	}
}

// runAll creates the bucket at the first place and runs the scenarios in parallel, each with its
// own locks.
func runAll(t *testing.T, n network) {
	t.Helper()
	at(t, n.places[0], n.opts...)
	n.opts = append([]natslock.Option{natslock.WithCreate(false)}, n.opts...)
	t.Run("scenarios", func(t *testing.T) {
		for _, s := range scenarios {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				s.run(t, n)
			})
		}
	})
}

// one is a topology's only server, or one of several to connect to.
func one(name string, s *testutil.Server) place {
	return place{name: name, connect: func(opts ...nats.Option) *nats.Conn {
		return s.Connect(append([]nats.Option{nats.IgnoreDiscoveredServers()}, opts...)...)
	}}
}

func single(t *testing.T) network {
	s := start(t, 0, host{name: "n1", file: "single.conf"})
	return network{places: []place{one("n1", s[0])}}
}

var threeReplicas = natslock.WithReplicas(3)

func cluster(t *testing.T) network {
	s := start(t, 0, host{name: "n1", file: "cluster-1.conf"}, host{name: "n2", file: "cluster-2.conf"}, host{name: "n3", file: "cluster-3.conf"})
	formed(t, s)
	return network{places: []place{one("n1", s[0]), one("n2", s[1]), one("n3", s[2])}, opts: []natslock.Option{threeReplicas}}
}

func leaf(t *testing.T) network {
	s := start(t, 0, host{name: "hub", file: "hub.conf"}, host{name: "leaf", file: "leaf.conf"})
	far := one("leaf", s[1])
	far.js = inDomain("hub")
	joined(t, s)
	return network{places: []place{one("hub", s[0]), far}}
}

func leafDomain(t *testing.T) network {
	s := start(t, 0, host{name: "hub", file: "hub.conf"}, host{name: "leaf", file: "leaf-domain.conf"})
	far := one("leaf", s[1])
	far.js = inDomain("hub")
	joined(t, s)
	return network{places: []place{one("hub", s[0]), far}}
}

// joined waits until the leaf has reached the hub.
func joined(t *testing.T, servers []*testutil.Server) {
	t.Helper()
	for _, s := range servers {
		kit.Eventually(t, "the leaf has reached the hub", func() bool { return s.Server().NumLeafNodes() > 0 })
	}
}

func accounts(t *testing.T) network { return accountsWithout(t, "") }

// withoutNotices is two accounts, one of which forgot to import the bucket's notifications.
func withoutNotices(t *testing.T) network {
	n := accountsWithout(t, "{ stream:")
	n.silent = true
	return n
}

// accountsWithout omits the import lines that contain text.
func accountsWithout(t *testing.T, text string) network {
	t.Helper()
	h := host{name: "n1", file: "accounts.conf"}
	if text != "" {
		h.edit = func(conf string) string {
			exports, imports, _ := strings.Cut(conf, "imports:")
			var b strings.Builder
			for line := range strings.Lines(imports) {
				if !strings.Contains(line, text) {
					b.WriteString(line)
				}
			}
			return exports + "imports:" + b.String()
		}
	}
	s := start(t, 0, h)
	as := func(user string) func(opts ...nats.Option) *nats.Conn {
		return func(opts ...nats.Option) *nats.Conn {
			return s[0].Connect(append([]nats.Option{nats.UserInfo(user, "change me")}, opts...)...)
		}
	}
	return network{places: []place{
		{name: "owner", connect: as("owner")},
		{name: "app", connect: as("app"), js: throughImport},
	}}
}

// wan is the one-way delay between the clusters of a gateway and on the slow link, which makes a
// round trip of 80 ms.
const wan = 40 * time.Millisecond

func gateway(t *testing.T) network {
	s := start(t, wan, host{name: "east", file: "gateway-east.conf"}, host{name: "west", file: "gateway-west.conf"})
	formed(t, s)
	east := one("east", s[0])
	js, err := jetstream.New(east.connect())
	require.NoError(t, err)
	store, err := kvstore.Open(t.Context(), js, kvstore.Config{Replicas: 1}) // the cluster has one server
	require.NoError(t, err)
	store.Close()
	placed := natslock.WithBucketConfig(kvstore.Config{Placement: &jetstream.Placement{Cluster: "east"}})
	return network{
		places: []place{east, one("west", s[1])},
		opts:   []natslock.Option{placed},
		slow:   2 * wan,
	}
}

func mirrored(t *testing.T) network {
	n := single(t)
	at(t, n.places[0])
	mirror(t, n.places[0].connect())
	return n
}

func slowLink(t *testing.T) network { return slowLinkOf(t, wan) }

func slowLinkOf(t *testing.T, oneWay time.Duration) network {
	t.Helper()
	n := cluster(t)
	s := n.places[0].connect().ConnectedUrl()
	addr := slowProxy(t, s[len("nats://"):], oneWay)
	n.places = append(n.places, place{name: "far away", connect: func(opts ...nats.Option) *nats.Conn {
		nc, err := nats.Connect("nats://"+addr, append([]nats.Option{nats.IgnoreDiscoveredServers()}, opts...)...)
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		return nc
	}})
	n.slow = 2 * oneWay
	return n
}

// TestDocumented checks that the documentation names every topology and every file.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile(documents + ".md")
	require.NoError(t, err)
	for _, top := range topologies {
		require.Contains(t, string(text), "| "+top.name+" |")
		require.Contains(t, strings.ToLower(string(text)), "# "+strings.ToLower(top.name)+"\n")
	}
	files, err := os.ReadDir(documents)
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		require.Contains(t, string(text), "(topologies/"+f.Name()+")")
	}
}
