package tool

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"
	"golang.org/x/net/proxy"
)

// Connection describes how to reach the server, using the nats command's flags, environment
// variables and contexts. A flag overrides the environment, which overrides the context. All
// login methods together are one setting: if a flag selects one, those in the environment and
// the context are ignored.
//
// A command embeds Connection in the struct that kong fills, and then calls [Connection.Parsed]
// and [Connection.Verify].
type Connection struct {
	Server      string        `short:"s" env:"NATS_URL" placeholder:"URL" help:"Servers to connect to, separated by commas (default nats://127.0.0.1:4222)."`
	Context     string        `env:"NATS_CONTEXT" placeholder:"NAME" help:"Context of the nats command, or a file that holds one (default the selected one)."`
	NoContext   bool          `help:"Use no context, not even the selected one."`
	User        string        `env:"NATS_USER" placeholder:"USER" help:"User name, or a token if there is no password."`
	Password    string        `env:"NATS_PASSWORD" placeholder:"PASSWORD" help:"The user's password."`
	Token       string        `env:"NATS_TOKEN" placeholder:"TOKEN" help:"Token."`
	Creds       string        `env:"NATS_CREDS" placeholder:"FILE" help:"Credentials file."`
	Nkey        string        `env:"NATS_NKEY" placeholder:"FILE" help:"File with the seed of an nkey."`
	JWT         string        `name:"jwt" env:"NATS_JWT" placeholder:"FILE" help:"File with the JWT of the user whose nkey seed is in --seed."`
	Seed        string        `env:"NATS_SEED" placeholder:"FILE" help:"File with the nkey seed for --jwt."`
	TLSCert     string        `name:"tlscert" env:"NATS_CERT" type:"path" placeholder:"FILE" help:"TLS certificate of this client."`
	TLSKey      string        `name:"tlskey" env:"NATS_KEY" type:"path" placeholder:"FILE" help:"Private key of the certificate in --tlscert."`
	TLSCA       string        `name:"tlsca" env:"NATS_CA" type:"path" placeholder:"FILE" help:"TLS certificates of the authorities to trust."`
	TLSFirst    bool          `name:"tlsfirst" help:"Perform the TLS handshake before the server's greeting."`
	SocksProxy  string        `env:"NATS_SOCKS_PROXY" placeholder:"URL" help:"SOCKS5 proxy."`
	InboxPrefix string        `placeholder:"PREFIX" help:"Prefix of reply subjects."`
	Domain      string        `name:"js-domain" aliases:"domain" env:"LOCKCTL_DOMAIN" placeholder:"NAME" help:"JetStream domain the bucket is in."`
	APIPrefix   string        `name:"js-api-prefix" placeholder:"PREFIX" help:"Prefix of JetStream API subjects."`
	Timeout     time.Duration `env:"NATS_TIMEOUT" default:"5s" placeholder:"DURATION" help:"Time limit for connecting and for each request (default ${default})."`

	given   map[string]bool // flags on the command line, by name
	source  string          // what named the servers for the last Dial; "" if nothing did
	by      string          // what supplied its login; "" if nothing did
	expired string          // message that its login's token has expired, with the remedy; "" if the token is valid
}

// Parsed records which flags were given on the command line rather than set by the environment.
func (c *Connection) Parsed(ctx *kong.Context) {
	c.given = make(map[string]bool)
	for _, p := range ctx.Path {
		if p.Flag != nil {
			c.given[p.Flag.Name] = true
		}
	}
}

// Given reports whether flag is on the command line.
func (c *Connection) Given(flag string) bool { return c.given[flag] }

// layer is where a setting comes from. A higher layer takes precedence.
type layer int

const (
	nowhere layer = iota
	fromContext
	fromEnvironment
	fromFlag
)

func (c *Connection) layer(name string, value ...string) layer {
	switch {
	case strings.Join(value, "") == "":
		return nowhere
	case c.given[name]:
		return fromFlag
	}
	return fromEnvironment
}

// login is a login method.
type login struct {
	name  string
	layer layer
	apply func(*nats.Options) error
}

// login returns the login method that takes precedence. Its layer is nowhere if only the context
// has one. Two flags that contradict each other are an error. Environment variables have the
// same order as in the nats command.
func (c *Connection) login() (best login, err error) {
	ways := []login{
		{"--user", max(c.layer("user", c.User), c.layer("password", c.Password)), c.applyUser},
		{"--creds", c.layer("creds", c.Creds), func(o *nats.Options) error { return applyCreds("--creds", c.Creds, o) }},
		{"--nkey", c.layer("nkey", c.Nkey), func(o *nats.Options) error { return applyNkey("--nkey", c.Nkey, o) }},
		{"--jwt", c.layer("jwt", c.JWT), func(o *nats.Options) error { return applyJWT("--jwt", c.JWT, "--seed", c.Seed, o) }},
		{"--token", c.layer("token", c.Token), func(o *nats.Options) error { o.Token = c.Token; return nil }},
	}
	for _, w := range ways {
		if w.layer == fromFlag && best.layer == fromFlag {
			return best, Usagef("%s and %s are mutually exclusive", best.name, w.name)
		}
		if w.layer > best.layer {
			best = w
		}
	}
	return best, nil
}

func (c *Connection) applyUser(o *nats.Options) error {
	if c.Password == "" { // like the nats command
		o.Token = c.User
		return nil
	}
	o.User, o.Password = c.User, c.Password
	return nil
}

// Verify returns an error if settings from flags and the environment contradict each other,
// whatever the context says.
func (c *Connection) Verify() error {
	switch {
	case c.Timeout <= 0:
		return Usagef("--timeout %v: must be positive", c.Timeout)
	case c.NoContext && c.given["context"]:
		return Usagef("--context and --no-context are mutually exclusive")
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return Usagef("--tlscert and --tlskey must be used together")
	case c.Seed != "" && c.JWT == "" && (c.given["seed"] || c.Creds == "" && c.Nkey == "" && c.User == "" && c.Token == ""):
		return Usagef("--seed requires --jwt")
	case c.Domain != "" && c.APIPrefix != "":
		return Usagef("--js-domain and --js-api-prefix are mutually exclusive")
	}
	_, err := c.login()
	return err
}

// servers returns the servers' URLs and the layer they come from.
func (c *Connection) servers(of Context) (urls []string, from layer, err error) {
	from = c.layer("server", c.Server)
	source := "--server"
	list := c.Server
	switch {
	case from == fromFlag:
	case from == fromEnvironment:
		source = "NATS_URL"
	case of.URL != "":
		from, source = fromContext, c.contextTitle()
		list = of.URL
	default:
		list, source = nats.DefaultURL, ""
	}
	c.source = source
	for raw := range strings.SplitSeq(list, ",") {
		if raw = strings.TrimSpace(raw); raw != "" {
			urls = append(urls, raw)
		}
	}
	if err := checkURLs(urls...); err != nil {
		return nil, from, Usagef("%s: %w", source, err)
	}
	return urls, from, nil
}

// settle applies the settings from flags and the environment to the options, and falls back to
// those from the context.
func (c *Connection) settle(of Context, o *nats.Options) error {
	login, err := c.login()
	if err != nil {
		return err
	}
	urls, from, err := c.servers(of)
	if err != nil {
		return err
	}
	inURL := slices.ContainsFunc(urls, func(u string) bool { return strings.Contains(u, "@") })
	c.by = ""
	switch {
	case login.layer == fromFlag:
		c.by = login.name
	case login.layer == fromEnvironment:
		c.by = "NATS_" + strings.ToUpper(strings.TrimPrefix(login.name, "--"))
	case inURL:
		c.by = c.source
	case of.login() != "":
		c.by = c.contextTitle()
	}
	switch {
	case login.layer > nowhere:
		if err := login.apply(o); err != nil {
			return err
		}
		if o.User == "" && o.Password != "" { // a password for the context's user
			o.User = of.User
		}
		if login.layer > from {
			for i, u := range urls {
				urls[i] = WithoutCredentials(u)
			}
		}
	case from <= fromContext || !inURL:
		if err := of.applyLogin(o); err != nil {
			return c.ofContext(err)
		}
	}
	o.Servers = urls
	c.expired = ""
	if o.UserJWT != nil {
		if token, err := o.UserJWT(); err == nil {
			if end := jwtEnd(token); !end.IsZero() && end.Before(time.Now()) {
				c.expired = fmt.Sprintf("the credentials from %s expired at %s: get new ones", c.by, end.UTC().Format(time.RFC3339))
			}
		}
	}
	below, err := of.transport(c)
	if err == nil {
		err = below.applyTransport(o, "socks_proxy")
	}
	if err != nil {
		return c.ofContext(err)
	}
	return c.applyTransport(o, "--socks-proxy")
}

// applyTransport applies the transport settings to the options. proxy is how errors refer to the
// proxy's setting.
func (c *Connection) applyTransport(o *nats.Options, proxy string) error {
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
			return Usagef("%s: %w", proxy, err)
		}
		opts = append(opts, nats.SetCustomDialer(dialer))
	}
	for _, opt := range opts {
		if err := opt(o); err != nil {
			return Usagef("%w", err)
		}
	}
	return nil
}

func socks(raw string) (proxy.Dialer, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, errURL
	}
	return proxy.FromURL(u, proxy.Direct)
}
