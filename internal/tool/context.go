package tool

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats.go"
)

// Context holds the settings of a nats command context that say how to reach a server. The
// login and the files are references: see [secret].
type Context struct {
	URL         string `json:"url"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Creds       string `json:"creds"`
	Nkey        string `json:"nkey"`
	JWT         string `json:"user_jwt"`
	Seed        string `json:"user_seed"`
	Token       string `json:"token"`
	NSC         string `json:"nsc"` // in older contexts; creds and url then come from nsc
	Cert        string `json:"cert"`
	Key         string `json:"key"`
	CA          string `json:"ca"`
	CertStore   string `json:"windows_cert_store"`
	TLSFirst    bool   `json:"tls_first"`
	SocksProxy  string `json:"socks_proxy"`
	InboxPrefix string `json:"inbox_prefix"`
	Domain      string `json:"jetstream_domain"`
	APIPrefix   string `json:"jetstream_api_prefix"`
}

// readContext reads a context by its name, or from a file whose name ends in .json. Without a
// name it reads the selected context, which is empty if none is selected.
func readContext(name string) (c Context, err error) {
	file := name
	if abs, err := filepath.Abs(name); !strings.HasSuffix(name, ".json") || err != nil || !isFile(abs) {
		dir, err := configDir()
		if name == "" {
			// A service may have no home directory, or no access to it. In that case, no
			// context is selected.
			selected := filepath.Join(dir, "context.txt")
			if _, missing := os.Stat(selected); err != nil || missing != nil {
				return c, nil
			}
			text, err := os.ReadFile(selected)
			if name = strings.TrimSpace(string(text)); err != nil || name == "" {
				return c, err
			}
		}
		if err != nil {
			return c, err
		}
		if strings.Contains(name, "..") || strings.ContainsAny(name, `/\`) {
			return c, fmt.Errorf("invalid name %q", name)
		}
		file = filepath.Join(dir, "context", name+".json")
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("unknown context %q: there is no file %s", name, file)
	} else if err != nil {
		return c, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("%s: %w", file, err)
	}
	if c.NSC != "" && (c.URL == "" || c.login() == "nsc") {
		p, err := nscProfile(c.NSC)
		if err != nil {
			return c, err
		}
		c.URL, c.Creds = cmp.Or(c.URL, strings.Join(p.Operator.Service, ",")), cmp.Or(c.Creds, p.Creds)
	}
	return c, nil
}

// configDir returns the directory that holds the nats command's settings.
func configDir() (string, error) {
	parent := os.Getenv("XDG_CONFIG_HOME")
	if parent == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		parent = filepath.Join(home, ".config")
	}
	return filepath.Join(parent, "nats"), nil
}

// login returns the name of the context's login method, or "" if it has none. The order of
// precedence is that of the nats command.
func (c *Context) login() string {
	for _, way := range []struct{ name, value string }{
		{"user", c.User}, {"creds", c.Creds}, {"nsc", c.NSC}, {"nkey", c.Nkey}, {"user_jwt", c.JWT}, {"token", c.Token},
	} {
		if way.value != "" {
			return way.name
		}
	}
	return ""
}

// applyLogin applies the context's login method to the options.
func (c *Context) applyLogin(o *nats.Options) (err error) {
	switch c.login() {
	case "user":
		o.User = c.User
		o.Password, err = literal("password", c.Password)
	case "creds", "nsc":
		err = applyCreds("creds", c.Creds, o)
	case "nkey":
		err = applyNkey("nkey", c.Nkey, o)
	case "user_jwt":
		err = applyJWT("user_jwt", c.JWT, "user_seed", c.Seed, o)
	}
	if err == nil && c.Token != "" {
		o.Token, err = literal("token", c.Token)
	}
	return err
}

// transport returns the context's transport settings, except those that over overrides. It
// rejects settings that it cannot honor.
func (c *Context) transport(over *Connection) (below Connection, err error) {
	if over.TLSCert == "" {
		switch {
		case c.CertStore != "":
			return below, errors.New("windows_cert_store is not supported; use files with --tlscert and --tlskey")
		case (c.Cert == "") != (c.Key == ""):
			return below, errors.New("cert and key must be set together")
		}
		below.TLSCert, below.TLSKey = c.Cert, c.Key
	}
	if over.TLSCA == "" {
		below.TLSCA = c.CA
	}
	for _, file := range []*string{&below.TLSCert, &below.TLSKey, &below.TLSCA} {
		kind, path := reference(*file)
		if kind != "" {
			return below, fmt.Errorf("%s is not supported here: certificates and keys must be in files", kind)
		}
		*file = path
	}
	if over.SocksProxy == "" {
		below.SocksProxy = c.SocksProxy
	}
	below.TLSFirst, below.InboxPrefix = c.TLSFirst, c.InboxPrefix
	return below, nil
}
