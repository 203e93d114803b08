package lease

import (
	"fmt"
	"strings"
	"sync"
)

// Kind is a kind of lock. Locks of different kinds are different locks, also
// under one name.
type Kind uint8

const (
	// Mutex is the mutual exclusion lock.
	Mutex Kind = iota
	// RW is the reader-writer lock.
	RW
)

// Prefixes of the keys, one for each thing that is kept.
const (
	lockPrefix   = "lock."
	waitPrefix   = "wait."
	gatePrefix   = "rw."
	rwaitPrefix  = "rwait."
	readerPrefix = "read."
)

// kinds remembers as what this client uses a name: using one as both would look
// like one lock and be two.
type kinds struct {
	mu sync.Mutex
	m  map[string]Kind
}

// maxKinds bounds the memory of names; beyond it some are forgotten.
const maxKinds = 1 << 16

// check notes that name is used as kind. The error matches [ErrInvalidName].
func (k *kinds) check(name string, kind Kind) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if was, ok := k.m[name]; ok {
		if was != kind {
			return fmt.Errorf("%w: this client uses %q both as a mutex and as a reader-writer lock, which are different locks", ErrInvalidName, name)
		}
		return nil
	}
	if k.m == nil {
		k.m = make(map[string]Kind)
	}
	if len(k.m) >= maxKinds {
		for n := range k.m {
			delete(k.m, n)
			break
		}
	}
	k.m[name] = kind
	return nil
}

// maxName is the longest encoded name in bytes.
const maxName = 512

// EncodeName maps a lock's name one-to-one to what a key may be made of. A
// dot between two non-empty tokens stays one, so that names keep a hierarchy
// that wildcards and permissions understand; every byte outside
// [A-Za-z0-9_/-] becomes '=' and two hex digits. The error matches
// [ErrInvalidName].
func EncodeName(name string) (string, error) { return encode(name, stays) }

// encode escapes the bytes of name that keep does not keep.
func encode(name string, keep func(name string, i int) bool) (string, error) {
	if name == "" {
		return "", fmt.Errorf("%w: it is empty", ErrInvalidName)
	}
	plain := true
	for i := range len(name) {
		if !keep(name, i) {
			plain = false
			break
		}
	}
	encoded := name
	if !plain {
		var b strings.Builder
		for i := range len(name) {
			if keep(name, i) {
				b.WriteByte(name[i])
			} else {
				fmt.Fprintf(&b, "=%02X", name[i])
			}
			if b.Len() > maxName {
				break
			}
		}
		encoded = b.String()
	}
	if len(encoded) > maxName {
		return "", fmt.Errorf("%w: %.32q... has more than %d bytes when encoded; hash long names", ErrInvalidName, name, maxName)
	}
	return encoded, nil
}

// stays says whether byte i of name stands for itself.
func stays(name string, i int) bool {
	switch c := name[i]; {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '/', c == '-':
		return true
	case c == '.':
		return i > 0 && i < len(name)-1 && name[i-1] != '.' && name[i+1] != '.'
	}
	return false
}

// DecodeName is the inverse of [EncodeName]. It fails for what no name encodes
// to, so that a foreign key is never shown as somebody's lock.
func DecodeName(encoded string) (string, bool) {
	name := encoded
	if strings.Contains(encoded, "=") {
		var b strings.Builder
		for i := 0; i < len(encoded); i++ {
			c := encoded[i]
			if c == '=' {
				if i+2 >= len(encoded) {
					return "", false
				}
				hi, lo := unhex(encoded[i+1]), unhex(encoded[i+2])
				if hi < 0 || lo < 0 {
					return "", false
				}
				c = byte(hi<<4 | lo)
				i += 2
			}
			b.WriteByte(c)
		}
		name = b.String()
	}
	again, err := EncodeName(name)
	return name, err == nil && again == encoded
}

func unhex(c byte) int { return strings.IndexByte("0123456789ABCDEF", c) }

// EncodePattern encodes a pattern over names: tokens that are "*" and a last
// one that is ">" stay wildcards, everything else is encoded like a name. A
// name that has such a token itself is matched by that wildcard.
func EncodePattern(pattern string) (string, error) {
	encoded, err := encode(pattern, func(p string, i int) bool { return stays(p, i) || wildcard(p, i) })
	if err != nil {
		return "", fmt.Errorf("pattern: %w", err)
	}
	return encoded, nil
}

// wildcard says whether byte i of a pattern is one: a token of its own between
// dots that stay dots.
func wildcard(pattern string, i int) bool {
	last := i == len(pattern)-1
	return (pattern[i] == '*' || pattern[i] == '>' && last) &&
		(i == 0 || pattern[i-1] == '.' && stays(pattern, i-1)) &&
		(last || pattern[i+1] == '.' && stays(pattern, i+1))
}

// keysOf returns the pattern of the keys under prefix whose names an encoded
// pattern matches. Behind the name of a waiter or a reader comes an id, which
// must not be taken for a part of the name.
func keysOf(prefix, encoded string) string {
	switch prefix {
	case waitPrefix, rwaitPrefix, readerPrefix:
		if open, ok := strings.CutSuffix(encoded, ">"); ok {
			return prefix + open + "*.>"
		}
		return prefix + encoded + ".*"
	}
	return prefix + encoded
}

// JoinName makes a name of parts that may hold any bytes, dots included, so
// that different parts give different names: ("a.b", "c") is not ("a", "b.c").
func JoinName(parts []string) string {
	escape := strings.NewReplacer("=", "=3D", ".", "=2E")
	out := make([]string, len(parts))
	for i, p := range parts {
		out[i] = escape.Replace(p)
		if p == "" {
			out[i] = "=" // an escape is always longer
		}
	}
	return strings.Join(out, ".")
}

// parsedKey is what a key says.
type parsedKey struct {
	prefix string
	name   string // decoded
	id     string // of a waiter or a reader
}

// parseKey takes a key apart; false for keys that are none of ours.
func parseKey(key string) (parsedKey, bool) {
	i := strings.IndexByte(key, '.')
	if i < 0 {
		return parsedKey{}, false
	}
	p := parsedKey{prefix: key[:i+1]}
	rest := key[i+1:]
	switch p.prefix {
	case lockPrefix, gatePrefix:
	case waitPrefix, rwaitPrefix, readerPrefix:
		j := strings.LastIndexByte(rest, '.')
		if j < 0 {
			return parsedKey{}, false
		}
		rest, p.id = rest[:j], rest[j+1:]
	default:
		return parsedKey{}, false
	}
	name, ok := DecodeName(rest)
	p.name = name
	return p, ok
}

// KeyPatterns returns the patterns of the keys that the locks have whose names
// match a pattern: those of holders and writers, of readers, and of waiters. The
// error matches [ErrInvalidName].
func KeyPatterns(pattern string) (holders, readers, waiters []string, err error) {
	encoded, err := EncodePattern(pattern)
	if err != nil {
		return nil, nil, nil, err
	}
	return []string{keysOf(lockPrefix, encoded), keysOf(gatePrefix, encoded)},
		[]string{keysOf(readerPrefix, encoded)},
		[]string{keysOf(waitPrefix, encoded), keysOf(rwaitPrefix, encoded)}, nil
}
