package tool

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/natslock/locks/internal/plain"
)

// A reference says where a credential is. The nats command accepts these: a file, given as a path or
// as file://, with ~ and variables; env://NAME, a variable; data:;base64,TEXT, the credential itself,
// as written by "nats context add --embed"; nsc://OPERATOR/ACCOUNT/USER, read with the nsc command;
// and op://VAULT/ITEM/FIELD, read with the op command. Errors never quote a data: reference.

// reference splits a reference into its kind, which is "" for a file, and the file's path or the text
// after the kind.
func reference(ref string) (kind, rest string) {
	for _, kind := range []string{"file://", "env://", "nsc://", "op://", "data:"} {
		if len(ref) >= len(kind) && strings.EqualFold(ref[:len(kind)], kind) {
			if kind == "file://" {
				return "", expanded(ref[len(kind):])
			}
			return kind, ref[len(kind):]
		}
	}
	return "", expanded(ref)
}

// expanded expands variables and ~ in a path.
func expanded(path string) string {
	path = os.ExpandEnv(path)
	if rest, ok := strings.CutPrefix(path, "~"); ok && (rest == "" || os.IsPathSeparator(rest[0])) {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, rest)
		}
	}
	return path
}

// secret reads the credential that a reference points to.
func secret(ref string) ([]byte, error) {
	kind, rest := reference(ref)
	switch kind {
	case "env://":
		value := os.Getenv(rest)
		if value == "" {
			return nil, fmt.Errorf("%s: the variable is not set", plain.Text(ref))
		}
		return []byte(value), nil
	case "data:":
		_, payload, ok := strings.Cut(rest, ";base64,")
		text, err := base64.StdEncoding.DecodeString(payload)
		if !ok || err != nil {
			return nil, errors.New("the data: reference is not valid base64; create it with \"nats context add --embed\"")
		}
		return text, nil
	case "nsc://":
		p, err := nscProfile(rest)
		if err != nil {
			return nil, err
		}
		return os.ReadFile(p.Creds)
	case "op://":
		return output("op", "read", "op://"+rest)
	}
	return os.ReadFile(rest)
}

// literal returns the value of a setting that may be a reference, but not a plain path. Usually the
// text itself is the value.
func literal(setting, text string) (string, error) {
	if kind, _ := reference(text); kind == "" && !strings.HasPrefix(strings.ToLower(text), "file://") {
		return text, nil
	}
	value, err := secret(text)
	if err != nil {
		return "", Usagef("%s: %w", setting, err)
	}
	return strings.TrimRight(string(value), "\r\n"), nil
}

// nscOutput is the output of "nsc generate profile".
type nscOutput struct {
	Creds    string `json:"user_creds"`
	Operator struct {
		Service []string `json:"service"`
	} `json:"operator"`
}

func nscProfile(user string) (p nscOutput, err error) {
	text, err := output("nsc", "generate", "profile", "nsc://"+strings.TrimPrefix(user, "nsc://"))
	if err != nil {
		return p, err
	}
	if err = json.Unmarshal(text, &p); err == nil && p.Creds == "" {
		err = errors.New("no user_creds in it")
	}
	if err != nil {
		return p, fmt.Errorf("output of nsc generate profile: %w", err)
	}
	return p, nil
}

// output returns the output of a command that prints a credential.
func output(name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w", plain.Text(strings.Join(append([]string{name}, args...), " ")), err)
		if text := strings.TrimSpace(said.String()); text != "" {
			err = fmt.Errorf("%w: %s", err, plain.Text(text))
		}
	}
	return out, err
}

// applyCreds makes the client log in with credentials. A credentials file is read again for each
// connection.
func applyCreds(setting, ref string, o *nats.Options) error {
	kind, path := reference(ref)
	if kind == "" {
		if _, err := os.Stat(path); err != nil {
			return Usagef("%s: %w", setting, err)
		}
		return nats.UserCredentials(path)(o)
	}
	text, err := secret(ref)
	if err != nil {
		return Usagef("%s: %w", setting, err)
	}
	return nats.UserCredentialBytes(text)(o)
}

func applyNkey(setting, ref string, o *nats.Options) error {
	text, err := secret(ref)
	if err != nil {
		return Usagef("%s: %w", setting, err)
	}
	key, err := nkeys.ParseDecoratedNKey(text)
	if err != nil {
		return Usagef("%s: no nkey seed in it: %w", setting, err)
	}
	public, err := key.PublicKey()
	if err != nil {
		return Usagef("%s: %w", setting, err)
	}
	return nats.Nkey(public, key.Sign)(o)
}

// applyJWT makes the client log in with a user's token and the seed of its nkey. Each may be a
// reference or the text itself. A bearer token needs no seed.
func applyJWT(setting, jwt, seedSetting, seed string, o *nats.Options) error {
	token, err := fileOrLiteral(setting, jwt)
	if err != nil {
		return err
	}
	sign := func([]byte) ([]byte, error) { return nil, nil }
	if seed != "" {
		text, err := fileOrLiteral(seedSetting, seed)
		if err != nil {
			return err
		}
		key, err := nkeys.ParseDecoratedNKey([]byte(text))
		if err != nil {
			return Usagef("%s: no nkey seed in it: %w", seedSetting, err)
		}
		sign = key.Sign
	}
	return nats.UserJWT(func() (string, error) { return token, nil }, sign)(o)
}

// jwtEnd returns when a token expires, or the zero time if it never does or is not a token.
func jwtEnd(token string) time.Time {
	var claims struct {
		Expires int64 `json:"exp"`
	}
	_, rest, _ := strings.Cut(token, ".")
	body, _, _ := strings.Cut(rest, ".")
	text, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil || json.Unmarshal(text, &claims) != nil || claims.Expires == 0 {
		return time.Time{}
	}
	return time.Unix(claims.Expires, 0)
}

func fileOrLiteral(setting, text string) (string, error) {
	if kind, path := reference(text); kind == "" {
		if value, err := os.ReadFile(path); err == nil {
			return strings.TrimSpace(string(value)), nil
		} else if strings.ContainsAny(text, `/\`) || errors.Is(err, fs.ErrPermission) {
			return "", Usagef("%s: %w", setting, err)
		}
	}
	return literal(setting, text)
}
