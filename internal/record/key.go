package record

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/natslock/locks/internal/kvstore"
)

// ErrInvalidName means that a string cannot name a lock. It matches [kvstore.ErrInvalid].
var ErrInvalidName error = invalidName{}

type invalidName struct{}

func (invalidName) Error() string        { return "invalid lock name" }
func (invalidName) Is(target error) bool { return target == kvstore.ErrInvalid }

// Kind is a kind of lock. Locks of different kinds are different locks, even under the same name.
type Kind uint8

const (
	// Mutex is a mutual exclusion lock.
	Mutex Kind = iota
	// RW is a reader-writer lock.
	RW
	// Semaphore is a lock that several holders share, each with a permit.
	Semaphore
)

func (k Kind) String() string {
	switch k {
	case Mutex:
		return "mutex"
	case RW:
		return "rw"
	case Semaphore:
		return "semaphore"
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// MaxPermits is the maximum number of permits of a semaphore. A single request can read that many slots along with the
// queue.
const MaxPermits = 256

// Mode is the mode of a claim.
type Mode uint8

const (
	// Exclusive means that the holder has the lock to itself.
	Exclusive Mode = iota
	// Shared means that readers hold the lock together.
	Shared
)

// Key prefixes, one for each sort of record.
const (
	LockPrefix   = "lock."  // the holder of a mutex
	WaitPrefix   = "wait."  // a place in the queue of a mutex
	GatePrefix   = "rw."    // the gate of a reader-writer lock, held by its writer
	RWaitPrefix  = "rwait." // a place in the queue of a reader-writer lock
	ReaderPrefix = "read."  // a reader
	SlotPrefix   = "sem."   // the holder of a semaphore's permit
	SWaitPrefix  = "swait." // a place in the queue of a semaphore
)

// Prefixes lists all key prefixes.
var Prefixes = []string{LockPrefix, WaitPrefix, GatePrefix, RWaitPrefix, ReaderPrefix, SlotPrefix, SWaitPrefix}

// Keys provides the keys of one lock.
type Keys struct {
	// Gate is the key of the record that excludes others, which for a mutex is its holder's record. A semaphore has no
	// record under this key, because its slots exclude others.
	Gate    string
	Kind    Kind
	encoded string
}

// KeysOf returns the keys of the lock with the given kind and encoded name.
func KeysOf(kind Kind, encoded string) Keys {
	k := Keys{Kind: kind, encoded: encoded}
	switch kind {
	case RW:
		k.Gate = GatePrefix + encoded
	case Semaphore:
		k.Gate = SlotPrefix + encoded
	default:
		k.Gate = LockPrefix + encoded
	}
	return k
}

// Place returns the key of the place with this id. If id is "*", the result is a pattern for all places.
func (k Keys) Place(id string) string {
	switch k.Kind {
	case RW:
		return RWaitPrefix + k.encoded + "." + id
	case Semaphore:
		return SWaitPrefix + k.encoded + "." + id
	}
	return WaitPrefix + k.encoded + "." + id
}

// Reader returns the key of the reader with this id. If id is "*", the result is a pattern for all readers.
func (k Keys) Reader(id string) string { return ReaderPrefix + k.encoded + "." + id }

// Slot returns the key of slot n. Each holder of a permit has a slot.
func (k Keys) Slot(n int) string { return SlotPrefix + k.encoded + "." + strconv.Itoa(n) }

// Slots returns the pattern for all slots.
func (k Keys) Slots() string { return SlotPrefix + k.encoded + ".*" }

// maxName limits the length of an encoded name, in bytes.
const maxName = 512

// EncodeName maps a lock's name one-to-one to part of a key. A dot between two non-empty tokens is kept, so that names
// form a hierarchy that wildcards and permissions understand. Any other byte outside [A-Za-z0-9_/-] becomes '=' and two
// hex digits. The error matches [ErrInvalidName].
func EncodeName(name string) (string, error) { return encode(name, stays) }

// encode escapes each byte of name unless keep returns true for it.
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

// stays reports whether byte i of name is kept unescaped.
func stays(name string, i int) bool {
	switch c := name[i]; {
	// Wildcards and '=' are escaped, so that no encoded name is a pattern and no two names share a key.
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '/', c == '-': //safety:name-escaped
		return true
	case c == '.':
		return i > 0 && i < len(name)-1 && name[i-1] != '.' && name[i+1] != '.'
	}
	return false
}

// decodeName is the inverse of [EncodeName]. It fails for a string that does not encode a name, so that no foreign key
// is mistaken for a lock.
func decodeName(encoded string) (string, bool) {
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

// EncodePattern encodes a pattern of names. A token that is "*", or a last token that is ">", remains a wildcard;
// everything else is encoded as in a name. A wildcard also matches names in which that token is literal.
func EncodePattern(pattern string) (string, error) {
	encoded, err := encode(pattern, func(p string, i int) bool { return stays(p, i) || wildcard(p, i) })
	if err != nil {
		return "", fmt.Errorf("pattern: %w", err)
	}
	return encoded, nil
}

// wildcard reports whether byte i of a pattern is a wildcard: a whole token between dots that are kept.
func wildcard(pattern string, i int) bool {
	last := i == len(pattern)-1
	return (pattern[i] == '*' || pattern[i] == '>' && last) &&
		(i == 0 || pattern[i-1] == '.' && stays(pattern, i-1)) &&
		(last || pattern[i+1] == '.' && stays(pattern, i+1))
}

// Pattern returns the pattern for the keys under prefix whose names match an encoded pattern. The keys of waiters and
// readers end in an id, and those of slots in a number, which must not be mistaken for part of the name.
func Pattern(prefix, encoded string) string {
	switch prefix {
	case WaitPrefix, RWaitPrefix, ReaderPrefix, SlotPrefix, SWaitPrefix:
		if open, ok := strings.CutSuffix(encoded, ">"); ok {
			return prefix + open + "*.>"
		}
		return prefix + encoded + ".*"
	}
	return prefix + encoded
}

// JoinName builds a name from parts that may contain any bytes, including dots. Different parts give different names:
// ("a.b", "c") does not collide with ("a", "b.c").
func JoinName(parts []string) string {
	escape := strings.NewReplacer("=", "=3D", ".", "=2E")
	out := make([]string, len(parts))
	for i, p := range parts {
		out[i] = escape.Replace(p)
		if p == "" {
			out[i] = "=" // an escape is always longer, so this cannot collide
		}
	}
	return strings.Join(out, ".")
}

// Key is a parsed key.
type Key struct {
	Prefix string
	Name   string // decoded
	ID     string // of a waiter or reader
	Slot   int    // of a semaphore
}

// ParseKey parses a key. It returns false for a key that the library does not write.
func ParseKey(key string) (Key, bool) {
	i := strings.IndexByte(key, '.')
	if i < 0 {
		return Key{}, false
	}
	p := Key{Prefix: key[:i+1]}
	rest := key[i+1:]
	switch p.Prefix {
	case LockPrefix, GatePrefix:
	case WaitPrefix, RWaitPrefix, ReaderPrefix, SlotPrefix, SWaitPrefix:
		j := strings.LastIndexByte(rest, '.')
		if j < 0 {
			return Key{}, false
		}
		rest, p.ID = rest[:j], rest[j+1:]
		if p.Prefix == SlotPrefix {
			n, err := strconv.Atoi(p.ID)
			if err != nil || n < 0 || n >= MaxPermits || strconv.Itoa(n) != p.ID {
				return Key{}, false
			}
			p.ID, p.Slot = "", n
		}
	default:
		return Key{}, false
	}
	name, ok := decodeName(rest)
	p.Name = name
	return p, ok
}

// Kind returns the kind of lock that the key belongs to.
func (k Key) Kind() Kind {
	switch k.Prefix {
	case LockPrefix, WaitPrefix:
		return Mutex
	case SlotPrefix, SWaitPrefix:
		return Semaphore
	}
	return RW
}

// Waits reports whether the key belongs to a place in a queue.
func (k Key) Waits() bool {
	return k.Prefix == WaitPrefix || k.Prefix == RWaitPrefix || k.Prefix == SWaitPrefix
}

// KeyPatterns returns the key patterns for the locks whose names match pattern: one list for holders, writers and
// slots, one for readers, and one for waiters. The error matches [ErrInvalidName].
func KeyPatterns(pattern string) (holders, readers, waiters []string, err error) {
	encoded, err := EncodePattern(pattern)
	if err != nil {
		return nil, nil, nil, err
	}
	return []string{Pattern(LockPrefix, encoded), Pattern(GatePrefix, encoded), Pattern(SlotPrefix, encoded)},
		[]string{Pattern(ReaderPrefix, encoded)},
		[]string{Pattern(WaitPrefix, encoded), Pattern(RWaitPrefix, encoded), Pattern(SWaitPrefix, encoded)}, nil
}
