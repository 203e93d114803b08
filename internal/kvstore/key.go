package kvstore

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	// maxTTL is the longest TTL a record can have: 366 days.
	maxTTL = 366 * 24 * time.Hour
	// tombstoneTTL is the TTL of a tombstone, the shortest that the server supports.
	tombstoneTTL = time.Second
	// maxKey is the maximum length of a key. The server limits only the protocol line, to 4
	// KiB.
	maxKey = 1024
)

// checkKey rejects everything that is not a literal key, so that no name can ever be
// mistaken for a pattern.
func checkKey(key string) error {
	if key == "" || len(key) > maxKey || key[0] == '.' || key[len(key)-1] == '.' || strings.Contains(key, "..") {
		return fmt.Errorf("%w: %.64q", ErrInvalidKey, key)
	}
	for i := range len(key) {
		c := key[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '-', c == '_', c == '/', c == '=', c == '.':
		default:
			return fmt.Errorf("%w: %.64q contains %q", ErrInvalidKey, key, c)
		}
	}
	return nil
}

// checkPattern is like checkKey, but any whole token may be * and the last one may be >.
func checkPattern(pattern string) error {
	if len(pattern) > maxKey {
		return fmt.Errorf("%w: %.64q", ErrInvalidKey, pattern)
	}
	tokens := strings.Split(pattern, ".")
	for i, t := range tokens {
		if t == "*" || (t == ">" && i == len(tokens)-1) {
			continue
		}
		if err := checkKey(t); err != nil {
			return err
		}
	}
	return nil
}

// ttlHeader formats a TTL in whole seconds, rounded up because the server truncates.
func ttlHeader(d time.Duration) (string, error) {
	// The server treats 0 as no TTL, and a TTL that overflows as one in the past.
	if d <= 0 || d > maxTTL { //safety:ttl-in-range
		return "", fmt.Errorf("%w: must be positive and at most %v, not %v", ErrInvalidTTL, maxTTL, d)
	}
	// If a record expired even a fraction of a second early, the next holder would get in
	// too soon.
	seconds := int64((d + time.Second - 1) / time.Second) //safety:ttl-rounded-up
	if seconds < int64(len(ttlHeaders)) {
		return ttlHeaders[seconds], nil
	}
	return strconv.FormatInt(seconds, 10) + "s", nil
}

// ttlHeaders caches the headers for common TTLs.
var ttlHeaders = func() (all [64]string) {
	for i := range all {
		all[i] = strconv.Itoa(i) + "s"
	}
	return all
}()

// parseTTL parses a Nats-TTL header. It returns 0 if the header is invalid.
func parseTTL(s string) time.Duration {
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		// The server also accepts a bare number of seconds.
		if d, err = time.ParseDuration(s + "s"); err != nil {
			return 0
		}
	}
	if d < time.Second {
		return 0
	}
	return d.Truncate(time.Second)
}

// check returns the write's TTL header, or an error if the write is invalid.
func (w Write) check() (ttl string, err error) {
	// If the key were a pattern, the server would check one name and write another.
	if err := checkKey(w.Key); err != nil { //safety:key-literal
		return "", err
	}
	if len(w.Value) > MaxRecord {
		return "", fmt.Errorf("%w: value of %q has %d bytes; the limit is %d", ErrTooLarge, w.Key, len(w.Value), MaxRecord)
	}
	if w.Guard != "" {
		// The server compares only literal subjects, so a pattern would guard nothing.
		if err := checkKey(w.Guard); err != nil { //safety:guard-literal
			return "", err
		}
	}
	if w.Delete && w.TTL == 0 {
		w.TTL = tombstoneTTL
	}
	return ttlHeader(w.TTL)
}
