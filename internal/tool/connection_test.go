package tool

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"
)

// errStop ends dialling once the settings are known.
var errStop = errors.New("stop")

// dialled parses a command line and returns the settings with which a command would
// connect. Contexts are read from dir.
func dialled(t *testing.T, dir string, env map[string]string, args ...string) (o nats.Options, err error) {
	t.Helper()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "NATS_") || strings.HasPrefix(name, "LOCKCTL_") {
			t.Setenv(name, "") // restored when the test ends
			require.NoError(t, os.Unsetenv(name))
		}
	}
	t.Setenv("XDG_CONFIG_HOME", dir)
	for name, value := range env {
		t.Setenv(name, value)
	}
	var c struct {
		Connection `embed:""`
	}
	parser, err := kong.New(&c)
	require.NoError(t, err)
	ctx, err := parser.Parse(args)
	require.NoError(t, err)
	c.Parsed(ctx)
	if err := c.Verify(); err != nil {
		return o, err
	}
	_, _, _, err = c.Dial(func(final *nats.Options) error { o = *final; return errStop })
	if errors.Is(err, errStop) {
		err = nil
	}
	return o, err
}

// seedFile creates an nkey and returns its public half and the file with its seed.
func seedFile(t *testing.T) (public, path string) {
	t.Helper()
	user, err := nkeys.CreateUser()
	require.NoError(t, err)
	seed, err := user.Seed()
	require.NoError(t, err)
	public, err = user.PublicKey()
	require.NoError(t, err)
	path = filepath.Join(t.TempDir(), "user.nk")
	require.NoError(t, os.WriteFile(path, seed, 0o600))
	return public, path
}

// For each setting, a flag overrides the environment, which overrides the context, which
// overrides the default. The ways to log in count as one setting.
func TestConnectionSettings(t *testing.T) {
	public, nkey := seedFile(t)
	creds := filepath.Join(t.TempDir(), "user.creds")
	require.NoError(t, os.WriteFile(creds, nil, 0o600))
	dir := t.TempDir()
	context := func(name, text string) {
		path := filepath.Join(dir, "nats", "context", name+".json")
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	context("home", `{"url": "nats://home:1", "user": "ada", "password": "ctx", "inbox_prefix": "_HOME"}`)
	context("keyed", fmt.Sprintf(`{"url": "nats://u:p@keyed:1", "nkey": %q}`, nkey))
	context("open", `{"url": "nats://open:1,nats://open:2", "user": "ada"}`)
	context("bad", `{`)
	data := func(text string) string { return "data:;base64," + base64.StdEncoding.EncodeToString([]byte(text)) }
	seed, err := os.ReadFile(nkey)
	require.NoError(t, err)
	both := data("-----BEGIN NATS USER JWT-----\njwt\n------END NATS USER JWT------\n-----BEGIN USER NKEY SEED-----\n" + string(seed) + "\n------END USER NKEY SEED------\n")
	jwt := filepath.Join(t.TempDir(), "user.jwt")
	require.NoError(t, os.WriteFile(jwt, []byte("jwt\n"), 0o600))
	context("embedded", fmt.Sprintf(`{"creds": %q}`, both))
	context("embeddedkey", fmt.Sprintf(`{"nkey": %q}`, data(string(seed))))
	context("broken", `{"creds": "data:;base64,s3cret"}`)
	context("ofenv", `{"creds": "env://NATS_TEST_CREDS"}`)
	context("ofvault", `{"creds": "op://vault/item/field"}`)
	context("file", fmt.Sprintf(`{"creds": "file://%s"}`, creds))
	context("variable", `{"creds": "$NATS_TEST_DIR/user.creds"}`)
	context("home~", `{"creds": "~/user.creds"}`)
	context("jwt", fmt.Sprintf(`{"user_jwt": "jwt", "user_seed": %q}`, seed))
	context("jwtfiles", fmt.Sprintf(`{"user_jwt": %q, "user_seed": %q}`, jwt, nkey))
	context("jwtgone", fmt.Sprintf(`{"user_jwt": "%s.gone"}`, jwt))
	context("bearer", fmt.Sprintf(`{"user_jwt": %q}`, data("jwt")))
	context("literals", `{"user": "ada", "password": "env://NATS_TEST_WORD"}`)
	context("plain", `{"user": "ada", "password": "data://x"}`)
	context("nsc", `{"nsc": "O/A/U"}`)
	context("nscurl", `{"url": "nats://mine:1", "creds": "nsc://O/A/U"}`)
	context("store", `{"windows_cert_store": "user"}`)
	context("half", `{"cert": "x"}`)
	context("certdata", fmt.Sprintf(`{"ca": %q}`, data("x")))
	nsc := filepath.Join(t.TempDir(), "nsc")
	require.NoError(t, os.WriteFile(nsc, fmt.Appendf(nil, "#!/bin/sh\n[ \"$*\" = 'generate profile nsc://O/A/U' ] || exit 3\necho '{\"user_creds\": \"%s\", \"operator\": {\"service\": [\"nats://nsc:1\", \"nats://nsc:2\"]}}'\n", creds), 0o700))
	withNSC := map[string]string{"PATH": filepath.Dir(nsc) + ":/bin:/usr/bin"}
	selected := filepath.Join(dir, "nats", "context.txt")
	file := filepath.Join(t.TempDir(), "elsewhere.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"url": "nats://file:1"}`), 0o600))

	closed := filepath.Join(t.TempDir(), "closed")
	require.NoError(t, os.MkdirAll(filepath.Join(closed, ".config", "nats"), 0o700))
	require.NoError(t, os.Chmod(closed, 0))
	t.Cleanup(func() { _ = os.Chmod(closed, 0o700) })

	type env = map[string]string
	for _, c := range []struct {
		name     string
		selected string
		env      env
		args     string
		want     string // servers, then the login
		fails    string
	}{
		{name: "default", want: "nats://127.0.0.1:4222"},
		{name: "environment", env: env{"NATS_URL": "nats://env:1"}, want: "nats://env:1"},
		{name: "flag over environment", env: env{"NATS_URL": "nats://env:1"}, args: "-s nats://flag:1", want: "nats://flag:1"},
		{name: "a list", args: "-s nats://a:1,,nats://b:2", want: "nats://a:1,nats://b:2"},
		{name: "selected context", selected: "home", want: "nats://home:1 user=ada password=ctx inbox=_HOME"},
		{name: "no context", selected: "home", args: "--no-context", want: "nats://127.0.0.1:4222"},
		{name: "context of the environment", selected: "home", env: env{"NATS_CONTEXT": "open"}, want: "nats://open:1,nats://open:2 user=ada"},
		{name: "context of the flag", env: env{"NATS_CONTEXT": "open"}, args: "--context home", want: "nats://home:1 user=ada password=ctx inbox=_HOME"},
		{name: "context of a file", selected: "home", args: "--context " + file, want: "nats://file:1"},
		{name: "environment over context", selected: "home", env: env{"NATS_URL": "nats://env:1"}, want: "nats://env:1 user=ada password=ctx inbox=_HOME"},
		{name: "flag over context", selected: "home", args: "--inbox-prefix _MINE -s nats://flag:1", want: "nats://flag:1 user=ada password=ctx inbox=_MINE"},
		{name: "user", args: "--user eve --password s", want: "nats://127.0.0.1:4222 user=eve password=s"},
		{name: "user alone is a token", env: env{"NATS_USER": "t0k"}, want: "nats://127.0.0.1:4222 token=t0k"},
		{name: "token", env: env{"NATS_TOKEN": "t0k"}, want: "nats://127.0.0.1:4222 token=t0k"},
		{name: "user of the flag, password of the environment", env: env{"NATS_PASSWORD": "s"}, args: "--user eve", want: "nats://127.0.0.1:4222 user=eve password=s"},
		{name: "a password for the context's user", selected: "open", args: "--password s", want: "nats://open:1,nats://open:2 user=ada password=s"},
		{name: "token over the context's user", selected: "home", env: env{"NATS_TOKEN": "t"}, want: "nats://home:1 token=t inbox=_HOME"},
		{name: "nkey", env: env{"NATS_NKEY": nkey}, want: "nats://127.0.0.1:4222 nkey"},
		{name: "nkey over the environment's user", env: env{"NATS_USER": "eve", "NATS_PASSWORD": "s"}, args: "--nkey " + nkey, want: "nats://127.0.0.1:4222 nkey"},
		{name: "creds over the context's nkey, and its URL's user", selected: "keyed", env: env{"NATS_CREDS": creds}, want: "nats://keyed:1 creds"},
		{name: "context's nkey", selected: "keyed", want: "nats://u:p@keyed:1 nkey"},
		{name: "user over the context's nkey", selected: "keyed", args: "--user eve --password s", want: "nats://keyed:1 user=eve password=s"},
		{name: "user of the URL over the context's nkey", selected: "keyed", env: env{"NATS_URL": "nats://x:y@env:1"}, want: "nats://x:y@env:1"},
		{name: "URL keeps its user beside its own layer", env: env{"NATS_URL": "nats://x:y@env:1", "NATS_TOKEN": "t"}, want: "nats://x:y@env:1 token=t"},
		{name: "flag over the user of the environment's URL", env: env{"NATS_URL": "nats://x:y@env:1"}, args: "--token t", want: "nats://env:1 token=t"},
		{name: "the environment's order is that of nats", env: env{"NATS_USER": "eve", "NATS_PASSWORD": "s", "NATS_CREDS": creds}, want: "nats://127.0.0.1:4222 user=eve password=s"},

		{name: "blanks in a list keep the context's login", selected: "home", env: env{"NATS_URL": " nats://a:1, nats://b:2"}, want: "nats://a:1,nats://b:2 user=ada password=ctx inbox=_HOME"},
		{name: "no context, whatever the environment names", env: env{"NATS_CONTEXT": "open"}, args: "--no-context", want: "nats://127.0.0.1:4222"},
		{name: "a login does not drop the scheme", env: env{"NATS_URL": "tls://x:y@env:1"}, args: "--token t", want: "tls://env:1 token=t"},

		{name: "JWT and seed", env: env{"NATS_JWT": jwt, "NATS_SEED": nkey}, want: "nats://127.0.0.1:4222 creds"},
		{name: "references in the environment", env: env{"NATS_CREDS": both}, want: "nats://127.0.0.1:4222 creds"},
		{name: "an nkey in the environment", env: env{"NATS_NKEY": "env://NATS_TEST_SEED", "NATS_TEST_SEED": string(seed)}, want: "nats://127.0.0.1:4222 nkey"},
		{name: "embedded credentials", args: "--context embedded", want: "nats://127.0.0.1:4222 creds"},
		{name: "embedded nkey", args: "--context embeddedkey", want: "nats://127.0.0.1:4222 nkey"},
		{name: "credentials in a variable", env: env{"NATS_TEST_CREDS": "x"}, args: "--context ofenv", want: "nats://127.0.0.1:4222 creds"},
		{name: "credentials of a URL", args: "--context file", want: "nats://127.0.0.1:4222 creds"},
		{name: "variables in a path", env: env{"NATS_TEST_DIR": filepath.Dir(creds)}, args: "--context variable", want: "nats://127.0.0.1:4222 creds"},
		{name: "~ in a path", env: env{"HOME": filepath.Dir(creds)}, args: "--context home~", want: "nats://127.0.0.1:4222 creds"},
		{name: "context's JWT", args: "--context jwt", want: "nats://127.0.0.1:4222 creds"},
		{name: "files of the context's JWT", args: "--context jwtfiles", want: "nats://127.0.0.1:4222 creds"},
		{name: "a bearer token", args: "--context bearer", want: "nats://127.0.0.1:4222 creds"},
		{name: "a password in a variable", env: env{"NATS_TEST_WORD": "s"}, args: "--context literals", want: "nats://127.0.0.1:4222 user=ada password=s"},
		{name: "nsc, as in older contexts", env: withNSC, args: "--context nsc", want: "nats://nsc:1,nats://nsc:2 creds"},
		{name: "nsc for the credentials only", env: withNSC, args: "--context nscurl", want: "nats://mine:1 creds"},
		{name: "a login over one that is not there", args: "--context jwtgone --token t", want: "nats://127.0.0.1:4222 token=t"},

		{name: "no base64", args: "--context broken", fails: "context broken: creds: the data: reference is not valid base64"},
		{name: "no base64 in the environment", env: env{"NATS_CREDS": "data:;base64,s3cret"}, fails: "--creds: the data: reference is not valid base64"},
		{name: "no variable", args: "--context ofenv", fails: "context ofenv: creds: env://NATS_TEST_CREDS: the variable is not set"},
		{name: "no vault", env: env{"PATH": ""}, args: "--context ofvault", fails: `context ofvault: creds: op read op://vault/item/field: exec: "op"`},
		{name: "no nsc", env: env{"PATH": ""}, args: "--context nsc", fails: `context nsc: nsc generate profile nsc://O/A/U: exec: "nsc"`},
		{name: "no JWT", args: "--context jwtgone", fails: "context jwtgone: user_jwt: open "},
		{name: "a scheme that is none", args: "--context plain", fails: "context plain: password: the data: reference is not valid base64"},
		{name: "the certificates of Windows", args: "--context store", fails: "context store: windows_cert_store is not supported"},
		{name: "half a certificate of the context", args: "--context half", fails: "context half: cert and key must be set together"},
		{name: "an embedded certificate", args: "--context certdata", fails: "context certdata: data: is not supported here: certificates and keys must be in files"},
		{name: "seed without its JWT", env: env{"NATS_SEED": nkey}, fails: "--seed requires --jwt"},
		{name: "a path for a name", args: "--context ../x", fails: `invalid name "../x"`},

		{name: "two logins", args: "--creds " + creds + " --token t", fails: "--creds and --token are mutually exclusive"},
		{name: "half a certificate", env: env{"NATS_CERT": creds}, fails: "--tlscert and --tlskey must be used together"},
		{name: "no certificate", args: "--tlscert " + creds + " --tlskey " + creds, fails: "client certificate"},
		{name: "no authority", env: env{"NATS_CA": filepath.Join(dir, "none")}, fails: "none"},
		{name: "no credentials", args: "--creds " + filepath.Join(dir, "none"), fails: "--creds"},
		{name: "no seed", args: "--nkey " + creds, fails: "--nkey"},
		{name: "domain and prefix", args: "--js-domain a --js-api-prefix b", fails: "--js-domain and --js-api-prefix"},
		{name: "context and none", args: "--context home --no-context", fails: "--context and --no-context"},
		{name: "unknown context", args: "--context nosuch", fails: `context nosuch: unknown context "nosuch"`},
		{name: "a context that is none", selected: "bad", fails: "the selected context"},
		{name: "no home", env: env{"HOME": "", "XDG_CONFIG_HOME": ""}, args: "-s nats://flag:1", want: "nats://flag:1"},
		{name: "a home that is a file", env: env{"HOME": creds, "XDG_CONFIG_HOME": ""}, want: "nats://127.0.0.1:4222"},
		{name: "a home that may not be read", env: env{"HOME": closed, "XDG_CONFIG_HOME": ""}, want: "nats://127.0.0.1:4222"},
		{name: "a context of no home", env: env{"HOME": "", "XDG_CONFIG_HOME": ""}, args: "--context home", fails: "context home: $HOME is not defined"},
		{name: "no time", env: env{"NATS_TIMEOUT": "0s"}, fails: "--timeout 0s"},
		{name: "no proxy", args: "--socks-proxy ftp://x", fails: "--socks-proxy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(selected, []byte(c.selected), 0o600))
			o, err := dialled(t, dir, c.env, strings.Fields(c.args)...)
			if c.fails != "" {
				require.ErrorContains(t, err, c.fails)
				require.NotContains(t, err.Error(), "s3cret")
				coded, ok := errors.AsType[*Error](err)
				require.True(t, ok)
				require.Equal(t, ExitUsage, coded.Code)
				return
			}
			require.NoError(t, err)
			got := strings.Join(o.Servers, ",")
			for _, part := range []struct{ name, value string }{{"user", o.User}, {"password", o.Password}, {"token", o.Token}, {"inbox", o.InboxPrefix}} {
				if part.value != "" {
					got += fmt.Sprintf(" %s=%s", part.name, part.value)
				}
			}
			if o.Nkey != "" {
				require.Equal(t, public, o.Nkey)
				got += " nkey"
			}
			if o.UserJWT != nil {
				got += " creds"
			}
			require.Equal(t, c.want, got)
		})
	}
}
