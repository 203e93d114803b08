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

// Settings is a stream's configuration, keyed by JSON name, with numbers as [json.Number].
// It includes settings that this package does not know.
type Settings map[string]any

// Info describes a stream, as reported by a server.
type Info struct {
	// StreamInfo lacks any part of the configuration that nats.go cannot parse.
	jetstream.StreamInfo
	// Raw is the complete configuration.
	Raw json.RawMessage `json:"config"`
}

// Settings returns the stream's configuration. Settings also fills in Config.
func (i *Info) Settings() (s Settings, err error) {
	if err := i.read(); err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(i.Raw))
	dec.UseNumber()
	return s, dec.Decode(&s)
}

// read fills in Config. A value that nats.go cannot parse, such as one from a newer server,
// must not make the rest unreadable.
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

// atLeast returns a function that reports whether a limit is off or no lower than least.
func atLeast(least int64) func(value any) bool {
	return func(value any) bool {
		n, _ := value.(json.Number)
		i, err := n.Int64()
		return off(value) || err == nil && (i < 0 || i >= least)
	}
}

// off reports whether a server treats value as unset.
func off(value any) bool {
	return slices.Contains([]string{"null", "false", "0", "-1", `""`, "{}", "[]"}, asJSON(value))
}

// same reports whether a server treats a and b as the same value.
func same(a, b any) bool { return off(a) && off(b) || asJSON(a) == asJSON(b) }

func asJSON(value any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // subjects contain >
	_ = enc.Encode(value)
	return strings.TrimSpace(b.String())
}

// text formats a setting's value for a message.
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
