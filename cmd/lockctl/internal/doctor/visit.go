package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/cmd/lockctl/internal/session"
	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/tool"
)

const (
	// visiting is the timeout for connecting to another server, and for that server's response.
	visiting = 2 * time.Second
	// certificateWarning is how long before a certificate expires the doctor begins to warn.
	certificateWarning = 14 * 24 * time.Hour
)

// visited is a server that the doctor has connected to.
type visited struct {
	name   string
	stored bool // the server has JetStream
	leads  bool // the server reaches the bucket's leader
	nc     *nats.Conn
	js     jetstream.JetStream
}

// servers visits every server that the user or the cluster names. For the remaining checks, the
// doctor uses a server that reaches the bucket's leader, if there is one, because a server cut
// off from most of the others does not know what they are doing.
func (d *doctor) servers() {
	nc := d.s.NC
	d.visited = []visited{d.look(nc, d.s.JS)}
	seen := []string{nc.ConnectedServerId()}
	for _, raw := range nc.Servers() {
		if raw == nc.ConnectedUrl() {
			continue
		}
		other, err := d.connectTo(raw)
		if err != nil {
			d.unreached(raw, err)
			continue
		}
		js, err := inPlaceOf(d.s.JS, other)
		id := other.ConnectedServerId()
		if err != nil || slices.Contains(seen, id) { // already seen at another address
			other.Close()
			continue
		}
		seen = append(seen, id)
		d.visited = append(d.visited, d.look(other, js))
	}
	led := slices.IndexFunc(d.visited, func(v visited) bool { return v.leads })
	for i, v := range d.visited {
		if led >= 0 && !v.leads && v.stored {
			d.add("server", checkWarning, "fix the network between the servers; until then restart the clients that are connected to it with the addresses of the other servers, see \"A network cut\" in docs/operate/incidents.md",
				"%s cannot reach a leader of the bucket, but %s can: it is cut off, and its clients get no locks", v.name, d.visited[led].name)
		}
		if i == max(led, 0) {
			d.s.NC, d.s.JS = v.nc, v.js
		} else {
			v.nc.Close()
		}
	}
}

// look adds a server's rows, and checks whether the server reaches the bucket's leader.
func (d *doctor) look(nc *nats.Conn, js jetstream.JetStream) visited {
	v := visited{name: nc.ConnectedServerName(), nc: nc, js: js}
	v.stored, _ = nc.ConnectedServerJetStream()
	d.version(v.name, nc.ConnectedServerVersion())
	if state, err := nc.TLSConnectionState(); err == nil && len(state.PeerCertificates) > 0 {
		d.certificate(v.name, state.PeerCertificates[0].NotAfter, time.Now())
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(d.g.Timeout, visiting))
	defer cancel()
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if errors.Is(err, nats.ErrPermissionViolation) {
			cancel()
		}
	})
	stream, err := js.Stream(ctx, session.StreamOf(d.cfg))
	v.leads = err == nil && (stream.CachedInfo().Cluster == nil || stream.CachedInfo().Cluster.Leader != "")
	return v
}

// certificate adds the row for the expiry of a server's certificate.
func (d *doctor) certificate(server string, until, now time.Time) {
	switch left := until.Sub(now); {
	case left <= 0: // possible if this client does not verify it
		d.add("certificate", checkError, "give the server a new certificate", "%s: expired at %s", server, show.Clock(until))
	case left < certificateWarning:
		d.add("certificate", checkWarning, "give the server a new certificate, and have it reload with \"nats-server --signal reload\"", "%s: expires at %s, in %s", server, show.Clock(until), show.Brief(left))
	default:
		d.ok("certificate", "%s: expires at %s", server, show.Clock(until))
	}
}

// unreached adds a row for a server that the doctor cannot connect to.
func (d *doctor) unreached(raw string, err error) {
	raw = show.Plain(tool.WithoutCredentials(raw))
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		d.add("certificate", checkError, "give the server a new certificate, or correct the clock of this machine", "%s: expired, and no client can connect: %v", raw, err)
		return
	}
	repair := "start it, or fix the network; if it is running, have it advertise an address that its clients can reach (client_advertise)"
	if errors.Is(err, nats.ErrAuthorization) {
		repair = "give it the same users as the other servers"
	}
	d.add("server", checkWarning, cmp.Or(tool.TLSRemedy(err), repair), "%s cannot be reached from here: %v", raw, err)
}

// connectTo connects to a single server with the options of the session's connection.
func (d *doctor) connectTo(raw string) (*nats.Conn, error) {
	nc := d.s.NC
	opts := nc.Opts
	opts.Servers, opts.Url = nil, withLogin(raw, nc.ConnectedUrl())
	opts.AllowReconnect, opts.IgnoreDiscoveredServers, opts.Timeout = false, true, min(opts.Timeout, visiting)
	opts.AsyncErrorCB, opts.DisconnectedErrCB = func(*nats.Conn, *nats.Subscription, error) {}, nil
	// Like nats.go, expect a server that was discovered by its IP address to have the first
	// server's name in its certificate.
	if host := hostOf(raw); net.ParseIP(host) != nil && slices.Contains(nc.DiscoveredServers(), raw) {
		if named := hostOf(nc.ConnectedUrl()); net.ParseIP(named) == nil {
			if opts.TLSConfig == nil {
				opts.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
			}
			opts.TLSConfig = opts.TLSConfig.Clone()
			opts.TLSConfig.ServerName = cmp.Or(opts.TLSConfig.ServerName, named)
		}
	}
	return opts.Connect()
}

func hostOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// inPlaceOf returns a JetStream on nc with the domain or API prefix of js.
func inPlaceOf(js jetstream.JetStream, nc *nats.Conn) (jetstream.JetStream, error) {
	o := js.Options()
	switch {
	case o.Domain != "":
		return jetstream.NewWithDomain(nc, o.Domain)
	case o.APIPrefix != "":
		return jetstream.NewWithAPIPrefix(nc, strings.TrimSuffix(o.APIPrefix, "."))
	}
	return jetstream.New(nc)
}

// withLogin returns the URL raw with the credentials of the URL from.
func withLogin(raw, from string) string {
	u, err := url.Parse(raw)
	login, err2 := url.Parse(from)
	if err != nil || err2 != nil || login.User == nil {
		return raw
	}
	u.User = login.User
	return u.String()
}

// version checks a server's version. If a domain or an API prefix is given, the bucket may be
// on another server, whose version is in the nats-server row.
func (d *doctor) version(server, version string) {
	o := d.s.JS.Options()
	switch {
	case kvstore.ServerFits(version):
		d.ok("server version", "%s on %s", version, server)
	case o.Domain != "" || o.APIPrefix != "":
		d.ok("server version", "%s on %s; the bucket's server has its own row", version, server)
	default:
		d.add("server version", checkError, "upgrade nats-server to "+kvstore.MinServer+" or later", "%s on %s", version, server)
		d.Checks[len(d.Checks)-1].code = tool.ExitConfig
	}
}
