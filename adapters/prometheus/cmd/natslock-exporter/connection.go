package main

import (
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/natscontext"
	"golang.org/x/net/proxy"
)

// connection says how to reach the server, with the flags, variables and contexts of
// the nats command. A flag overrides the environment, and the environment overrides the
// context. The ways to log in are one setting: if a flag names one, the others of the
// environment and of the context are not used.
type connection struct {
	Server      string        `short:"s" env:"NATS_URL" placeholder:"URL" help:"Servers to connect to, separated by commas (default nats://127.0.0.1:4222)."`
	Context     string        `env:"NATS_CONTEXT" placeholder:"NAME" help:"Context of the nats command, or a file that holds one (default the selected one)."`
	NoContext   bool          `help:"Use no context, not even the selected one."`
	User        string        `env:"NATS_USER" placeholder:"USER" help:"User; a token, if there is no password."`
	Password    string        `env:"NATS_PASSWORD" placeholder:"PASSWORD" help:"The user's password."`
	Token       string        `env:"NATS_TOKEN" placeholder:"TOKEN" help:"Token."`
	Creds       string        `env:"NATS_CREDS" type:"path" placeholder:"FILE" help:"Credentials file."`
	Nkey        string        `env:"NATS_NKEY" type:"path" placeholder:"FILE" help:"File with the seed of an nkey."`
	TLSCert     string        `name:"tlscert" env:"NATS_CERT" type:"path" placeholder:"FILE" help:"TLS certificate of this client."`
	TLSKey      string        `name:"tlskey" env:"NATS_KEY" type:"path" placeholder:"FILE" help:"Key of that certificate."`
	TLSCA       string        `name:"tlsca" env:"NATS_CA" type:"path" placeholder:"FILE" help:"TLS certificates of the authorities to trust."`
	TLSFirst    bool          `name:"tlsfirst" help:"TLS handshake before the server's greeting."`
	SocksProxy  string        `env:"NATS_SOCKS_PROXY" placeholder:"URL" help:"SOCKS5 proxy."`
	InboxPrefix string        `placeholder:"PREFIX" help:"Subjects of answers begin so."`
	Domain      string        `name:"js-domain" aliases:"domain" env:"LOCKCTL_DOMAIN" placeholder:"NAME" help:"JetStream domain the bucket is in."`
	APIPrefix   string        `name:"js-api-prefix" placeholder:"PREFIX" help:"Subjects of the JetStream API begin so."`
	Timeout     time.Duration `env:"NATS_TIMEOUT" default:"5s" placeholder:"DURATION" help:"Limit for connecting and for single requests (default ${default})."`

	given map[string]bool // flags on the command line, by name
}

// layer is where a setting comes from; the greater one counts.
type layer int

const (
	nowhere layer = iota
	fromContext
	fromEnvironment
	fromFlag
)

func (c *connection) layer(name string, value ...string) layer {
	switch {
	case strings.Join(value, "") == "":
		return nowhere
	case c.given[name]:
		return fromFlag
	}
	return fromEnvironment
}

// login is one way to log in.
type login struct {
	name  string
	layer layer
	apply func(*nats.Options) error
}

// login returns the way to log in that takes precedence. Its layer is nowhere if only
// the context has one. Two flags that contradict each other are an error. Among
// variables the order is that of the nats command.
func (c *connection) login() (best login, err error) {
	ways := []login{
		{"--user", max(c.layer("user", c.User), c.layer("password", c.Password)), c.applyUser},
		{"--creds", c.layer("creds", c.Creds), c.applyCreds},
		{"--nkey", c.layer("nkey", c.Nkey), c.applyNkey},
		{"--token", c.layer("token", c.Token), func(o *nats.Options) error { o.Token = c.Token; return nil }},
	}
	for _, w := range ways {
		if w.layer == fromFlag && best.layer == fromFlag {
			return best, usagef("%s and %s exclude each other", best.name, w.name)
		}
		if w.layer > best.layer {
			best = w
		}
	}
	return best, nil
}

func (c *connection) applyUser(o *nats.Options) error {
	if c.Password == "" { // as the nats command has it
		o.Token = c.User
		return nil
	}
	o.User, o.Password = c.User, c.Password
	return nil
}

func (c *connection) applyCreds(o *nats.Options) error {
	if _, err := os.Stat(c.Creds); err != nil {
		return usagef("--creds: %w", err)
	}
	return nats.UserCredentials(c.Creds)(o)
}

func (c *connection) applyNkey(o *nats.Options) error {
	opt, err := nats.NkeyOptionFromSeed(c.Nkey)
	if err != nil {
		return usagef("--nkey %s: %w", c.Nkey, err)
	}
	return opt(o)
}

// noLogin forgets how to log in.
func noLogin(o *nats.Options) {
	o.User, o.Password, o.Token, o.Nkey = "", "", "", ""
	o.UserInfo, o.TokenHandler, o.UserJWT, o.SignatureCB = nil, nil, nil, nil
}

// check finds what contradicts itself, whatever the context says.
func (c *connection) check() error {
	switch {
	case c.Timeout <= 0:
		return usagef("--timeout %v: must be positive", c.Timeout)
	case c.NoContext && c.given["context"]:
		return usagef("--context and --no-context exclude each other")
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return usagef("--tlscert and --tlskey go together")
	case c.Domain != "" && c.APIPrefix != "":
		return usagef("--js-domain and --js-api-prefix exclude each other")
	}
	_, err := c.login()
	return err
}

// override puts the settings of flags and environment over those of the context,
// which are in o already.
func (c *connection) override(o *nats.Options) error {
	login, err := c.login()
	if err != nil {
		return err
	}
	server := c.layer("server", c.Server)
	switch {
	case server > nowhere:
		o.Servers = strings.Split(c.Server, ",")
	case len(o.Servers) == 0:
		o.Servers = []string{nats.DefaultURL}
	default:
		server = fromContext
	}
	list := strings.Join(o.Servers, ",")
	switch {
	case login.layer > nowhere:
		user := o.User
		noLogin(o)
		if err := login.apply(o); err != nil {
			return err
		}
		if o.User == "" && o.Password != "" { // a password for the context's user
			o.User = user
		}
		if login.layer > server {
			list = withoutCredentials(list)
		}
	case server > fromContext && list != withoutCredentials(list):
		noLogin(o)
	}
	o.Servers = nil
	for raw := range strings.SplitSeq(list, ",") {
		if raw = strings.TrimSpace(raw); raw != "" {
			o.Servers = append(o.Servers, raw)
		}
	}
	return c.overrideTransport(o)
}

// overrideTransport is override for what is below the login.
func (c *connection) overrideTransport(o *nats.Options) error {
	var opts []nats.Option
	if c.TLSCert != "" {
		opts = append(opts, nats.ClientCert(c.TLSCert, c.TLSKey))
	}
	if c.TLSCA != "" {
		opts = append(opts, nats.RootCAs(c.TLSCA))
	}
	if c.TLSFirst {
		opts = append(opts, nats.TLSHandshakeFirst())
	}
	if c.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(c.InboxPrefix))
	}
	if c.SocksProxy != "" {
		dialer, err := socks(c.SocksProxy)
		if err != nil {
			return usagef("--socks-proxy: %w", err)
		}
		opts = append(opts, nats.SetCustomDialer(dialer))
	}
	for _, opt := range opts {
		if err := opt(o); err != nil {
			return usagef("%w", err)
		}
	}
	return nil
}

func socks(raw string) (proxy.Dialer, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, err
	}
	return proxy.FromURL(u, proxy.Direct)
}

// dial connects, with opts over everything else. It returns the servers that were tried, without credentials,
// and what the context says of JetStream.
func (c *connection) dial(opts ...nats.Option) (nc *nats.Conn, servers string, s natscontext.Settings, err error) {
	tried := false
	opts = append([]nats.Option{c.override, func(o *nats.Options) error {
		tried, servers = true, withoutCredentials(strings.Join(o.Servers, ","))
		return nil
	}}, opts...)
	if c.NoContext {
		nc, err = nats.Connect("", opts...)
	} else {
		nc, s, err = natscontext.Connect(c.contextName(), opts...)
	}
	if err == nil || tried {
		return nc, servers, s, err
	}
	if _, ok := errors.AsType[*codeError](err); ok {
		return nil, "", s, err
	}
	name := "the selected context"
	if c.Context != "" {
		name = "context " + plain(c.Context)
	}
	return nil, "", s, usagef("%s: %w; choose one with --context, or --no-context", name, err)
}

// contextName is what the library knows the context by: it takes files by their
// absolute name only.
func (c *connection) contextName() string {
	if strings.HasSuffix(c.Context, ".json") {
		if abs, err := filepath.Abs(c.Context); err == nil && isFile(abs) {
			return abs
		}
	}
	return c.Context
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// jetStream is JetStream where flags, environment or context say it is. A domain
// is a prefix of its API, so a flag for one outdoes the context's other.
func (c *connection) jetStream(nc *nats.Conn, s natscontext.Settings) (js jetstream.JetStream, err error) {
	domain, prefix := c.Domain, c.APIPrefix
	if domain == "" && prefix == "" {
		domain, prefix = s.JSDomain, s.JSAPIPrefix
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
		return nil, usagef("JetStream domain %q, API prefix %q: %w", domain, prefix, err)
	}
	return js, nil
}
