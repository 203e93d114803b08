package tool

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/plain"
)

// Dial connects to the server. opts override all other settings. Dial also returns the servers it
// tried, without credentials, and the context's settings for [Connection.JetStream].
func (c *Connection) Dial(opts ...nats.Option) (nc *nats.Conn, servers string, of Context, err error) {
	if !c.NoContext {
		if of, err = readContext(c.Context); err != nil {
			return nil, "", of, c.ofContext(err)
		}
	}
	settle := func(o *nats.Options) error { return c.settle(of, o) }
	tried := func(o *nats.Options) error {
		servers = plain.Text(WithoutCredentials(strings.Join(o.Servers, ",")))
		return nil
	}
	nc, err = nats.Connect("", append([]nats.Option{settle, tried}, opts...)...)
	return nc, servers, of, err
}

// ofContext wraps err in an error that names the chosen context.
func (c *Connection) ofContext(err error) error {
	return Usagef("%s: %w; choose another with --context, or use --no-context", c.contextTitle(), err)
}

// ConnectError turns an error from [Connection.Dial] into a message that names the servers it
// tried. remedy is the advice to give if no server answers and no setting named one.
func (c *Connection) ConnectError(servers string, err error, remedy string) error {
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	addresses := servers
	if c.Context != "" && !c.NoContext {
		servers += fmt.Sprintf(" (context %s)", plain.Text(c.Context))
	}
	if c.expired != "" && CodeOf(err) == ExitPermission {
		return Exitf(ExitPermission, "%s refused the login: %w; %s", servers, err, c.expired)
	}
	if why := TLSRemedy(err); why != "" {
		return Exitf(ExitUnavailable, "cannot connect to %s: %w; %s", servers, err, why)
	}
	var authority x509.UnknownAuthorityError
	switch {
	case CodeOf(err) == ExitPermission && c.by != "":
		return Exitf(ExitPermission, "%s refused the login from %s: %w; correct it, or choose another with --user, --creds, --nkey, --token or --context", addresses, c.by, err)
	case CodeOf(err) == ExitPermission:
		return Exitf(ExitPermission, "%s refused the login: %w; log in with --user, --creds, --nkey or --token, or choose a --context", servers, err)
	case errors.As(err, &authority):
		return Exitf(ExitUnavailable, "cannot trust %s: %w; pass the authority's certificate with --tlsca", servers, err)
	case errors.Is(err, nats.ErrNoServers), errors.Is(err, nats.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		if c.source == c.contextTitle() {
			servers = addresses
		}
		if c.source != "" {
			remedy = fmt.Sprintf("the address comes from %s: start that server, or name another", c.source)
		}
		return Exitf(ExitUnavailable, "no server at %s; %s", servers, remedy)
	}
	return Exitf(ExitUnavailable, "cannot connect to %s: %w", servers, err)
}

// TLSRemedy returns the remedy for a TLS error, or "" if the error needs no further explanation.
func TLSRemedy(err error) string {
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var header tls.RecordHeaderError
	alert, ok := errors.AsType[*net.OpError](err)
	refused := ok && alert.Op == "remote error" && strings.Contains(alert.Err.Error(), "certificate") // the server's alert
	switch {
	case errors.As(err, &name):
		return "use a server name or address that is in its certificate"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the server needs a new certificate, or the clock of this machine is wrong"
	case errors.As(err, &header):
		return "the server sends its greeting before the handshake: omit --tlsfirst, or tls_first in the context"
	case errors.Is(err, nats.ErrSecureConnWanted):
		return "the server has no TLS: omit tls:// and the certificates, or specify another server"
	case refused, errors.Is(err, nats.ErrTLS) && strings.Contains(err.Error(), "after TLS handshake"): // the alert was lost
		return "the server requires a valid client certificate from an authority that it trusts: use --tlscert and --tlskey"
	}
	return ""
}

// contextTitle returns a phrase that names the context, for messages.
func (c *Connection) contextTitle() string {
	if c.Context == "" {
		return "the selected context"
	}
	return "context " + plain.Text(c.Context)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// JetStream returns the JetStream selected by the flags, the environment or the context. A domain
// is a prefix of the API, so setting either one overrides both settings of the context.
func (c *Connection) JetStream(nc *nats.Conn, of Context) (js jetstream.JetStream, err error) {
	domain, prefix := c.Domain, c.APIPrefix
	if domain == "" && prefix == "" {
		domain, prefix = of.Domain, of.APIPrefix
	}
	switch {
	case prefix != "":
		js, err = jetstream.NewWithAPIPrefix(nc, prefix)
	case domain != "":
		js, err = jetstream.NewWithDomain(nc, domain)
	default:
		js, err = jetstream.New(nc)
	}
	if err != nil {
		return nil, Usagef("JetStream domain %q, API prefix %q: %w", domain, prefix, err)
	}
	return js, nil
}

// ConnectionOf returns a function that returns the number of nc's current connection, counting
// from 1, or 0 if nc is not connected.
func ConnectionOf(nc *nats.Conn) func() uint64 {
	return func() uint64 {
		if !nc.IsConnected() {
			return 0
		}
		return 1 + nc.Stats().Reconnects
	}
}
