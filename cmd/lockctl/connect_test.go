//go:build unix

package main_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/internal/verify/tier"
	"github.com/natslock/locks/testutil"
)

// withEnv runs lockctl with additional environment variables and waits for it to exit.
func withEnv(t *testing.T, s *testutil.Server, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := startWith(t, s, "", env, args...)
	code = p.wait()
	return code, p.out.String(), p.err.String()
}

// TestLogin checks each way to authenticate, by flag, variable and context, on a server that
// refuses everyone else.
func TestLogin(t *testing.T) {
	t.Parallel()
	user, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err := user.PublicKey()
	require.NoError(t, err)
	seed, err := user.Seed()
	require.NoError(t, err)
	dir := t.TempDir()
	nkey := filepath.Join(dir, "user.nk")
	require.NoError(t, os.WriteFile(nkey, seed, 0o600))
	expired := filepath.Join(dir, "user.creds")
	require.NoError(t, os.WriteFile(expired, fmt.Appendf(nil, "-----BEGIN NATS USER JWT-----\nx.%s.y\n------END NATS USER JWT------\n-----BEGIN USER NKEY SEED-----\n%s\n------END USER NKEY SEED------\n",
		base64.RawURLEncoding.EncodeToString([]byte(`{"exp": 1700000000}`)), seed), 0o600))
	s := testutil.RunServer(t, testutil.WithConfigText(fmt.Sprintf(`authorization { users: [ { user: ada, password: s3cret }, { nkey: %s } ] }`, public)))
	withBucket(t, s, "--nkey", nkey)
	contexts := filepath.Join(dir, "nats", "context")
	require.NoError(t, os.MkdirAll(contexts, 0o700))
	for name, text := range map[string]string{
		"ada":   fmt.Sprintf(`{"url": %q, "user": "ada", "password": "s3cret"}`, s.URL()),
		"keyed": fmt.Sprintf(`{"url": %q, "nkey": %q}`, s.URL(), nkey),
		"wrong": fmt.Sprintf(`{"url": %q, "user": "ada", "password": "wrong"}`, s.URL()),
		"away":  `{"url": "nats://127.0.0.1:1"}`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(contexts, name+".json"), []byte(text), 0o600))
	}
	home := "XDG_CONFIG_HOME=" + dir
	for _, c := range []struct {
		code int
		env  []string
		args []string
		says string
	}{
		{0, nil, []string{"--user", "ada", "--password", "s3cret"}, ""},
		{0, []string{"NATS_USER=ada", "NATS_PASSWORD=s3cret"}, nil, ""},
		{0, nil, []string{"--nkey", nkey}, ""},
		{0, []string{"NATS_NKEY=" + nkey}, nil, ""},
		{0, []string{home, "NATS_CONTEXT=ada", "NATS_URL="}, nil, ""},
		{0, []string{home}, []string{"--context", "keyed"}, ""},
		{0, []string{home}, []string{"--context", "wrong", "--nkey", nkey}, ""},
		{0, []string{home, "NATS_CONTEXT=away"}, []string{"--user", "ada", "--password", "s3cret"}, ""},
		{77, nil, nil, "refused the login"},
		{77, nil, []string{"--token", "s3cret"}, "refused the login from --token"},
		{77, []string{home, "NATS_CONTEXT=wrong"}, nil, " refused the login from context wrong"},
		{77, []string{"NATS_USER=ada", "NATS_PASSWORD=s3cret"}, []string{"--password", "wrong"}, "refused the login from --user"},
		{77, []string{"NATS_USER=ada", "NATS_PASSWORD=wrong"}, nil, "refused the login from NATS_USER"},
		{77, []string{"NATS_CREDS=" + expired}, nil, "the credentials from NATS_CREDS expired at 2023-11-14T22:13:20Z: get new ones"},
		{69, []string{home, "NATS_URL="}, []string{"--context", "away"}, "no server at nats://127.0.0.1:1; the address comes from context away"},
		{64, []string{home}, []string{"--context", "nosuch"}, `unknown context "nosuch"`},
	} {
		code, out, errs := withEnv(t, s, c.env, append(c.args, "run", "x", "--", "echo", "inside")...)
		require.Equal(t, c.code, code, "%v %v: %s", c.env, c.args, errs)
		require.Equal(t, map[bool]string{true: "inside\n"}[code == 0], out)
		require.Contains(t, errs, c.says)
		require.NotContains(t, errs, "s3cret")
	}
	_, out, _ := withEnv(t, s, []string{home, "NATS_URL="}, "doctor", "--context", "away")
	require.Contains(t, out, "natslock at nats://127.0.0.1:1: 1 check, 0 warnings, 1 error", "the context's address")
	s = testutil.RunServer(t, testutil.WithConfigText(`authorization { token: t0ken }`))
	withBucket(t, s, "--token", "t0ken")
	for _, c := range []struct {
		env  []string
		args []string
	}{{nil, []string{"--token", "t0ken"}}, {[]string{"NATS_TOKEN=t0ken"}, nil}, {[]string{"NATS_USER=t0ken"}, nil}} {
		code, _, errs := withEnv(t, s, c.env, append(c.args, "ls")...)
		require.Zero(t, code, errs)
	}
}

// TestDomain checks that a bucket in a domain is not mistaken for one outside it.
func TestDomain(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfig(func(o *server.Options) { o.JetStreamDomain = "hub" }))
	withBucket(t, s)
	hold(t, s, "x")
	dir := t.TempDir()
	context := filepath.Join(dir, "hub.json")
	require.NoError(t, os.WriteFile(context, fmt.Appendf(nil, `{"url": %q, "jetstream_domain": "hub"}`, s.URL()), 0o600))
	wrong := filepath.Join(dir, "wrong.json")
	require.NoError(t, os.WriteFile(wrong, fmt.Appendf(nil, `{"url": %q, "jetstream_api_prefix": "$JS.wrong.API"}`, s.URL()), 0o600))
	for _, args := range [][]string{
		{"--js-domain", "hub"}, {"--domain", "hub"}, {"--js-api-prefix", "$JS.hub.API"},
		{"--context", context}, {"--context", wrong, "--js-domain", "hub"},
	} {
		require.Len(t, locks(t, s, append(args, "ls")...), 1, "%q", args)
	}
	for _, args := range [][]string{{"--js-domain", "other"}, {"--js-api-prefix", "$JS.other.API"}, {"--context", wrong}} {
		code, _, errs := run(t, s, append(args, "ls")...)
		require.Equal(t, 69, code, "%q: %s", args, errs)
		require.Contains(t, errs, "check --js-domain and --js-api-prefix")
		require.Contains(t, errs, s.URL())
	}
}

// TestTLS uses a server that accepts only clients with a certificate from its own private CA.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	authority := newAuthority(t, dir)
	serverCert, serverKey := authority.issue("server")
	cert, key := authority.issue("client")
	expiredCert, expiredKey := authority.issue("client-expired", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	lateCert, lateKey := authority.issue("server-expired", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	late := testutil.RunServer(t, testutil.WithConfigText(fmt.Sprintf(`tls { cert_file: %q, key_file: %q }`, lateCert, lateKey)))
	otherCert, otherKey := authority.issue("server-elsewhere", func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"elsewhere.example"} })
	other := testutil.RunServer(t, testutil.WithConfigText(fmt.Sprintf(`tls { cert_file: %q, key_file: %q }`, otherCert, otherKey)))
	bare := testutil.RunServer(t)
	foreign := newAuthority(t, t.TempDir())
	foreignCert, foreignKey := foreign.issue("client")
	tls := fmt.Sprintf(`tls { cert_file: %q, key_file: %q, ca_file: %q, verify: true }`, serverCert, serverKey, authority.file)
	s := testutil.RunServer(t, testutil.WithConfigText(tls))
	context := filepath.Join(dir, "tls.json")
	require.NoError(t, os.WriteFile(context, fmt.Appendf(nil, `{"url": %q, "cert": %q, "key": %q, "ca": %q}`, s.URL(), cert, key, authority.file), 0o600))
	all := []string{"--tlscert", cert, "--tlskey", key, "--tlsca", authority.file}
	withBucket(t, s, all...)
	for _, c := range []struct {
		code int
		env  []string
		args []string
		says string
	}{
		{0, nil, all, ""},
		{0, []string{"NATS_CERT=" + cert, "NATS_KEY=" + key, "NATS_CA=" + authority.file}, nil, ""},
		{0, nil, []string{"--context", context}, ""},
		{69, nil, []string{"--tlscert", cert, "--tlskey", key}, "--tlsca"},
		{69, nil, []string{"--tlscert", cert, "--tlskey", key, "--tlsca", foreign.file}, "--tlsca"},
		{69, nil, []string{"--tlsca", authority.file}, "the server requires a valid client certificate"},
		{69, nil, []string{"--tlsca", authority.file, "--tlscert", foreignCert, "--tlskey", foreignKey}, "the server requires a valid client certificate"},
		{69, nil, []string{"--tlsca", authority.file, "--tlscert", expiredCert, "--tlskey", expiredKey}, "the server requires a valid client certificate"},
		{69, nil, []string{"-s", late.URL(), "--tlsca", authority.file}, "the server needs a new certificate"},
		{69, nil, []string{"-s", other.URL(), "--tlsca", authority.file}, "use a server name or address that is in its certificate"},
		{69, nil, []string{"-s", bare.URL(), "--tlsca", authority.file}, "the server has no TLS"},
		{69, nil, append([]string{"--tlsfirst"}, all...), "omit --tlsfirst"},
		{64, nil, []string{"--tlscert", cert, "--tlskey", serverKey}, "private key does not match"},
	} {
		code, _, errs := withEnv(t, s, c.env, append(c.args, "run", "x", "--", "true")...)
		require.Equal(t, c.code, code, "%v %v: %s", c.env, c.args, errs)
		require.Contains(t, errs, c.says)
	}
	s = testutil.RunServer(t, testutil.WithConfigText(tls[:len(tls)-1]+", handshake_first: true }"))
	withBucket(t, s, append(all, "--tlsfirst")...)
	code, _, errs := run(t, s, append(all, "--tlsfirst", "ls")...)
	require.Zero(t, code, errs)
	code, _, _ = run(t, s, append(all, "--timeout", "500ms", "ls")...)
	require.Equal(t, 69, code, "without --tlsfirst both wait for the other to begin")
}

// authority is a CA that issues certificates for the tests.
type authority struct {
	t    *testing.T
	dir  string
	file string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, dir string) *authority {
	t.Helper()
	a := &authority{t: t, dir: dir}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	a.file, _ = a.write("authority", template)
	return a
}

// issue issues a certificate and returns the files of the certificate and its key.
func (a *authority) issue(name string, set ...func(*x509.Certificate)) (cert, key string) {
	return a.write(name, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, set...)
}

func (a *authority) write(name string, template *x509.Certificate, set ...func(*x509.Certificate)) (cert, key string) {
	a.t.Helper()
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().AddDate(0, 1, 0) // longer than the doctor's warning period
	for _, set := range set {
		set(template)
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	if a.cert == nil {
		a.cert, a.key = template, private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	require.NoError(a.t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(a.t, err)
	cert, key = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+"-key.pem")
	require.NoError(a.t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(a.t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
	return cert, key
}

// TestServer checks that the development server keeps its data across restarts, tells a second
// server on the same directory where the first one listens, and exits cleanly.
func TestServer(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "kept")
	var token uint64
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		p := start(t, nil, "server", "--port", "0", "--dir", dir)
		url := line(t, p)
		require.Regexp(t, `^nats://127\.0\.0\.1:\d+$`, url)
		code, out, errs := run(t, nil, "-s", url, "run", "x", "--", "sh", "-c", "echo $LOCK_TOKEN")
		require.Zero(t, code, errs)
		next, err := strconv.ParseUint(strings.TrimSpace(out), 10, 64)
		require.NoError(t, err)
		require.Greater(t, next, token)
		if token > 0 {
			require.Less(t, next-token, uint64(100*record.GrantsPerRevision), "the same bucket")
		}
		token = next

		second := start(t, nil, "server", "--port", "0", "--dir", dir)
		require.Equal(t, 69, second.wait())
		require.Contains(t, second.err.String(), "another lockctl server (pid "+strconv.Itoa(p.cmd.Process.Pid)+")")
		require.Contains(t, second.err.String(), "--server "+url)
		_, port, err := net.SplitHostPort(url[len("nats://"):])
		require.NoError(t, err)
		began := time.Now()
		third := start(t, nil, "server", "--port", port, "--dir", filepath.Join(t.TempDir(), "other"))
		require.Equal(t, 69, third.wait())
		require.Contains(t, third.err.String(), "address already in use")
		within(t, 5*time.Second, time.Since(began))

		p.signal(sig)
		require.Zero(t, p.wait())
		require.Empty(t, p.err.String())
	}
	home := t.TempDir()
	p := startWith(t, nil, "", []string{"HOME=" + home, "XDG_CACHE_HOME=" + filepath.Join(home, "cache")}, "server", "--port", "0")
	line(t, p)
	kept, err := filepath.Glob(filepath.Join(home, "*", "lockctl", "jetstream"))
	require.NoError(t, err)
	if runtime.GOOS != "darwin" { // macOS keeps the cache in ~/Library
		require.Len(t, kept, 1, "under the user's cache directory")
	}
	code, _, _ := run(t, nil, "server", "--port", "70000")
	require.Equal(t, 64, code)
}

// TestTokenIsNotShown checks that neither the doctor nor an outage message reveals a token in the
// server's URL.
func TestTokenIsNotShown(t *testing.T) {
	t.Parallel()
	s := testutil.RunServer(t, testutil.WithConfigText(`authorization { token: s3cret }`))
	withBucket(t, s, "--token", "s3cret")
	env := []string{"NATS_URL=nats://s3cret@" + strings.TrimPrefix(s.URL(), "nats://")}
	code, out, errs := withEnv(t, s, env, "doctor", "--monitor", "http://ada:s3cret%zz@127.0.0.1:1", "--monitor", "http://s3cret@127.0.0.1:1")
	require.Zero(t, code, errs)
	require.Contains(t, out, s.URL()+", server ")
	require.NotContains(t, out+errs, "s3cret")

	p := startWith(t, s, "", env, "run", "--ttl", "60s", "x", "--", "sh", "-c", "echo inside; exec sleep 60")
	line(t, p)
	s.Stop()
	kit.Eventually(t, "an outage", func() bool { return strings.Contains(p.err.String(), "connection lost") })
	s.Restart()
	kit.Eventually(t, "the end of the outage", func() bool { return strings.Contains(p.err.String(), "reconnected to "+s.URL()) })
	require.NotContains(t, p.err.String(), "s3cret")
}

// line waits for the first line of output and returns it.
func line(t *testing.T, p *process) (text string) {
	t.Helper()
	kit.Eventually(t, "a line of lockctl "+p.args, func() bool {
		var whole bool
		text, _, whole = strings.Cut(p.out.String(), "\n")
		return whole
	})
	return text
}

// TestDoctorReadsCertificates checks that the doctor warns of a server certificate about to expire,
// and reports an expired one as an error of that server.
func TestDoctorReadsCertificates(t *testing.T) {
	tier.Proof(t)
	t.Parallel()
	dir := t.TempDir()
	authority := newAuthority(t, dir)
	good := []string{}
	for name, until := range map[string]time.Duration{"good": 30 * 24 * time.Hour, "soon": 13 * 24 * time.Hour, "over": -time.Minute} {
		cert, key := authority.issue(name, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(until) })
		s := testutil.RunServer(t, testutil.WithConfigText(fmt.Sprintf("tls { cert_file: %q, key_file: %q }", cert, key)))
		if name != "over" {
			withBucket(t, s, "--tlsca", authority.file)
		}
		good = append(good, s.URL())
		if name == "good" {
			_, out, _ := run(t, s, "doctor", "--tlsca", authority.file)
			require.Regexp(t, `(?m)^ok +certificate `, out)
		}
	}
	_, out, _ := run(t, nil, "doctor", "--server", strings.Join(good, ","), "--tlsca", authority.file)
	require.Regexp(t, `(?m)^warning +certificate `, out)
	require.Regexp(t, `(?m)^error +certificate `, out)
}
