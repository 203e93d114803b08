package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// difference returns the settings that differ between two configurations, under their JSON
// names.
func difference(a, b any) ([]change, error) {
	is, err := settings(a)
	if err != nil {
		return nil, err
	}
	will, err := settings(b)
	if err != nil {
		return nil, err
	}
	names := maps.Clone(is)
	maps.Copy(names, will)
	var changes []change
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if is[name] != will[name] {
			changes = append(changes, change{name, cmp.Or(is[name], "unset"), cmp.Or(will[name], "unset")})
		}
	}
	return changes, nil
}

// settings returns a configuration's settings, keyed by JSON name. A nested setting is keyed by
// its path.
func settings(c any) (map[string]string, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var raw map[string]any
	if err := dec.Decode(&raw); err != nil {
		return nil, err
	}
	for _, name := range []string{"max_age", "duplicate_window", "subject_delete_marker_ttl"} {
		n, _ := raw[name].(json.Number)
		if d, err := n.Int64(); err == nil && d != 0 { // in nanoseconds
			raw[name] = time.Duration(d)
		}
	}
	out := make(map[string]string)
	flatten(out, "", raw)
	return out, nil
}

func flatten(out map[string]string, prefix string, object map[string]any) {
	for name, value := range object {
		if inner, ok := value.(map[string]any); ok {
			flatten(out, prefix+name+".", inner)
		} else {
			out[prefix+name] = fmt.Sprint(value)
		}
	}
}
