package kvstore

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Settings is the configuration of a stream as its server names it in JSON, with
// numbers as [json.Number]. It includes settings that no release of this package
// knows.
type Settings map[string]any

// Info is a server's answer about a stream.
type Info struct {
	// StreamInfo lacks the parts of the configuration that nats.go cannot parse.
	jetstream.StreamInfo
	// Raw is the whole configuration.
	Raw json.RawMessage `json:"config"`
}

// Settings returns the configuration of the stream. It also fills Config.
func (i *Info) Settings() (s Settings, err error) {
	if err := i.read(); err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(i.Raw))
	dec.UseNumber()
	return s, dec.Decode(&s)
}

// read fills Config. A value unknown to nats.go, for example from a later server, must
// not make the rest unreadable.
func (i *Info) read() error {
	i.Config = jetstream.StreamConfig{}
	if json.Unmarshal(i.Raw, &i.Config) == nil {
		return nil
	}
	var each map[string]json.RawMessage
	if err := json.Unmarshal(i.Raw, &each); err != nil {
		return fmt.Errorf("%w: unreadable settings: %w", ErrUnavailable, err)
	}
	i.Config = jetstream.StreamConfig{}
	for name, value := range each {
		if one, err := json.Marshal(map[string]json.RawMessage{name: value}); err == nil {
			_ = json.Unmarshal(one, &i.Config)
		}
	}
	return nil
}

// atLeast returns a check that accepts a limit that is off or at least least.
func atLeast(least int64) func(value any) bool {
	return func(value any) bool {
		n, _ := value.(json.Number)
		i, err := n.Int64()
		return off(value) || err == nil && (i < 0 || i >= least)
	}
}

// off reports whether a server reads value as a setting that is not set.
func off(value any) bool {
	return slices.Contains([]string{"null", "false", "0", "-1", `""`, "{}", "[]"}, asJSON(value))
}

// same reports whether two values mean the same to a server.
func same(a, b any) bool { return off(a) && off(b) || asJSON(a) == asJSON(b) }

func asJSON(value any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // subjects have a >
	_ = enc.Encode(value)
	return strings.TrimSpace(b.String())
}

// text formats a value for a message.
func text(name string, value any) string {
	switch v := value.(type) {
	case nil:
		return "unset"
	case string:
		return fmt.Sprintf("%.64s", v)
	case json.Number:
		if n, err := v.Int64(); err == nil && (name == "max_age" || name == "subject_delete_marker_ttl") {
			return time.Duration(n).String()
		}
	}
	return fmt.Sprintf("%.256s", asJSON(value))
}
