package record

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// seeds are names that a careless encoding would confuse, break or lose.
var seeds = []string{
	"a", "orders.42", "a..b", ".a", "a.", ".", "..", "", " ", "*", ">", "a.*", "*.>", "\x00", "\x00*", "a.\x00>", "=", "=2E", "=2e", "=2", "a=",
	"é", "\xff", "🔒", "lock:deploy", "issue_cert_*.example.com", strings.Repeat("x", 512), strings.Repeat("x", 513), strings.Repeat(" ", 171),
}

func TestEncodeName(t *testing.T) {
	for name, want := range map[string]string{
		"a": "a", "orders.42": "orders.42", "A-b_c/d": "A-b_c/d", "a..b": "a=2E=2Eb", ".a": "=2Ea", "a.": "a=2E", ".": "=2E", "..": "=2E=2E",
		" ": "=20", "*": "=2A", ">": "=3E", "a.*": "a.=2A", "a.>.b": "a.=3E.b", "\x00": "=00", "=": "=3D", "=2E": "=3D2E", "é": "=C3=A9",
		"lock:deploy": "lock=3Adeploy", "issue_cert_*.example.com": "issue_cert_=2A.example.com",
	} {
		got, err := EncodeName(name)
		if err != nil || got != want {
			t.Errorf("EncodeName(%q) = %q, %v, want %q", name, got, err, want)
		}
		if back, ok := decodeName(want); !ok || back != name {
			t.Errorf("decodeName(%q) = %q, %v, want %q", want, back, ok, name)
		}
	}
	for _, name := range []string{"", strings.Repeat("x", 513), strings.Repeat(" ", 171), strings.Repeat("x", 1<<20)} {
		if got, err := EncodeName(name); !errors.Is(err, ErrInvalidName) || got != "" || len(err.Error()) > 200 {
			t.Errorf("EncodeName of %d bytes = %q, %v", len(name), got, err)
		}
	}
	for _, name := range []string{strings.Repeat("x", 512), strings.Repeat(" ", 170)} {
		if _, err := EncodeName(name); err != nil {
			t.Errorf("EncodeName of %d bytes: %v", len(name), err)
		}
	}
}

// A string that no name encodes to is not the name of a lock.
func TestDecodeNameRefuses(t *testing.T) {
	for _, encoded := range []string{
		"", ".", "..", ".a", "a.", "a..b", "=", "=2", "=2e", "=2G", "a=", "=61", "=2E", "a=2Eb", "*", ">", "a b", "a*", "é", "\x00", "a.*",
		strings.Repeat("x", 513),
	} {
		if encoded == "=2E" { // it is the name "."
			continue
		}
		if name, ok := decodeName(encoded); ok {
			t.Errorf("decodeName(%q) = %q", encoded, name)
		}
	}
}

func FuzzName(f *testing.F) {
	for i, s := range seeds {
		f.Add(s, seeds[(i+1)%len(seeds)])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		ea, err := EncodeName(a)
		if err != nil {
			if a != "" && len(a) <= maxName/3 {
				t.Fatalf("%q is refused: %v", a, err)
			}
			return
		}
		if !literal(ea) {
			t.Fatalf("%q becomes %q, which is not a key", a, ea)
		}
		if len(ea) > maxName {
			t.Fatalf("%q becomes %d bytes", a, len(ea))
		}
		if back, ok := decodeName(ea); !ok || back != a {
			t.Fatalf("%q becomes %q becomes %q, %v", a, ea, back, ok)
		}
		if eb, err := EncodeName(b); err == nil && (ea == eb) != (a == b) {
			t.Fatalf("%q and %q become %q and %q", a, b, ea, eb)
		}
		for _, n := range []int{0, 7, MaxPermits - 1} {
			key := KeysOf(Semaphore, ea).Slot(n)
			if k, ok := ParseKey(key); !ok || k != (Key{Prefix: SlotPrefix, Name: a, Slot: n}) || k.Kind() != Semaphore || k.Waits() {
				t.Fatalf("ParseKey(%q) = %+v", key, k)
			}
		}
		// Every decoded name encodes to the same string again.
		if name, ok := decodeName(a); ok {
			if again, err := EncodeName(name); err != nil || again != a {
				t.Fatalf("%q is decoded as %q, which becomes %q", a, name, again)
			}
		}
		for _, prefix := range []string{LockPrefix, GatePrefix} {
			if k, ok := ParseKey(prefix + ea); !ok || k.Name != a || k.ID != "" || k.Prefix != prefix {
				t.Fatalf("ParseKey(%q) = %+v", prefix+ea, k)
			}
		}
		for _, prefix := range []string{WaitPrefix, RWaitPrefix, SWaitPrefix, ReaderPrefix} {
			if k, ok := ParseKey(prefix + ea + ".ID7"); !ok || k.Name != a || k.ID != "ID7" || k.Prefix != prefix {
				t.Fatalf("ParseKey(%q) = %+v", prefix+ea+".ID7", k)
			}
		}
	})
}

// literal reports whether s is a key rather than a pattern.
func literal(s string) bool {
	for token := range strings.SplitSeq(s, ".") {
		if token == "" || strings.Trim(token, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/-=") != "" {
			return false
		}
	}
	return true
}

// matches implements NATS's matching of a subject against a pattern.
func matches(pattern, subject string) bool {
	p, s := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, token := range p {
		switch {
		case token == ">" && i == len(p)-1:
			return len(s) > i
		case i >= len(s), token != "*" && token != s[i]:
			return false
		}
	}
	return len(p) == len(s)
}

func TestEncodePattern(t *testing.T) {
	for pattern, want := range map[string]string{
		">": ">", "*": "*", "orders.*": "orders.*", "orders.>": "orders.>", "*.x.*": "*.x.*", "a b.>": "a=20b.>", "a*": "a=2A", "a>": "a=3E",
		">.a": "=3E.a", "a.>.b": "a.=3E.b", "**": "=2A=2A", "\x00*": "=00=2A", "a.\x00>": "a.=00=3E", "a\x00*b": "a=00=2Ab", "a..*": "a=2E=2E=2A", ".*": "=2E=2A", "*.": "=2A=2E",
	} {
		if got, err := EncodePattern(pattern); err != nil || got != want {
			t.Errorf("EncodePattern(%q) = %q, %v, want %q", pattern, got, err, want)
		}
	}
	for _, pattern := range []string{"", strings.Repeat("x", 513)} {
		if got, err := EncodePattern(pattern); !errors.Is(err, ErrInvalidName) {
			t.Errorf("EncodePattern of %d bytes = %q, %v", len(pattern), got, err)
		}
	}
}

// FuzzPattern checks that the server understands every pattern, that a pattern always
// matches the name it spells, and that without a wildcard it matches nothing else.
func FuzzPattern(f *testing.F) {
	for i, s := range seeds {
		f.Add(s, seeds[(i+7)%len(seeds)])
	}
	f.Fuzz(func(t *testing.T, pattern, other string) {
		p, err := EncodePattern(pattern)
		if err != nil {
			return
		}
		wild := false
		tokens := strings.Split(p, ".")
		for i, token := range tokens {
			switch {
			case token == "*", token == ">" && i == len(tokens)-1:
				wild = true
			case !literal(token):
				t.Fatalf("%q becomes %q, which is no pattern", pattern, p)
			}
		}
		e, err := EncodeName(pattern)
		if err == nil && !matches(p, e) {
			t.Fatalf("%q, as a pattern %q, does not match itself as a name, %q", pattern, p, e)
		}
		if !wild && err == nil && p != e {
			t.Fatalf("%q becomes the pattern %q and the name %q", pattern, p, e)
		}
		if eo, err := EncodeName(other); err == nil && !wild && other != pattern && matches(p, eo) {
			t.Fatalf("%q matches %q", pattern, other)
		}
	})
}

// A key that the library does not write is not a lock's key, whatever it contains.
func TestParseForeignKey(t *testing.T) {
	for _, key := range []string{"", "lock", "wait.a", "other.a.b", ".a", "LOCK.a"} {
		if k, ok := ParseKey(key); ok {
			t.Errorf("ParseKey(%q) = %+v", key, k)
		}
	}
}

// The patterns of lock keys are grouped by what the keys are for. There is no pattern for a
// name that no lock can have.
func TestKeyPatterns(t *testing.T) {
	holders, readers, waiters, err := KeyPatterns("a b.>")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ got, want []string }{
		{holders, []string{"lock.a=20b.>", "rw.a=20b.>", "sem.a=20b.*.>"}},
		{readers, []string{"read.a=20b.*.>"}},
		{waiters, []string{"wait.a=20b.*.>", "rwait.a=20b.*.>", "swait.a=20b.*.>"}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	for _, pattern := range []string{"", strings.Repeat("x", 513)} {
		if _, _, _, err := KeyPatterns(pattern); !errors.Is(err, ErrInvalidName) {
			t.Errorf("KeyPatterns of %d bytes: %v", len(pattern), err)
		}
	}
}

// A key under the slot prefix is a slot only if it ends in the number of one.
func TestParseSlot(t *testing.T) {
	for _, key := range []string{"sem.a", "sem.a.", "sem.a.x", "sem.a.256", "sem.a.-1", "sem.a.01", "sem.a.+1", "sem..1"} {
		if k, ok := ParseKey(key); ok {
			t.Errorf("ParseKey(%q) = %+v", key, k)
		}
	}
	if k, ok := ParseKey("swait.a.b.ID"); !ok || k.Name != "a.b" || k.ID != "ID" || k.Kind() != Semaphore || !k.Waits() {
		t.Errorf("%+v", k)
	}
}

func TestJoinName(t *testing.T) {
	for _, c := range []struct {
		parts []string
		want  string
	}{
		{[]string{"a", "b"}, "a.b"}, {[]string{"a.b"}, "a=2Eb"}, {[]string{"a", "", "b"}, "a.=.b"}, {[]string{""}, "="}, {[]string{"="}, "=3D"},
		{[]string{"=2E"}, "=3D2E"}, {[]string{"a b", "*"}, "a b.*"}, {nil, ""},
	} {
		if got := JoinName(c.parts); got != c.want {
			t.Errorf("JoinName(%q) = %q, want %q", c.parts, got, c.want)
		}
	}
}

// FuzzJoin splits each of two strings into a list of parts.
func FuzzJoin(f *testing.F) {
	for i, s := range seeds {
		f.Add(s+"|"+s, seeds[(i+3)%len(seeds)]+"|x")
	}
	f.Add("a.b|c", "a|b.c")
	f.Add("|", "=|")
	f.Fuzz(func(t *testing.T, a, b string) {
		pa, pb := strings.Split(a, "|"), strings.Split(b, "|")
		ja, jb := JoinName(pa), JoinName(pb)
		if (ja == jb) != slices.Equal(pa, pb) {
			t.Fatalf("%q and %q become %q and %q", pa, pb, ja, jb)
		}
		if n := strings.Count(ja, ".") + 1; n != len(pa) {
			t.Fatalf("%d parts %q become %q", len(pa), pa, ja)
		}
		// The parts remain separate tokens, even in the key.
		e, err := EncodeName(ja)
		if err == nil && strings.Count(e, ".")+1 != len(pa) {
			t.Fatalf("%q becomes the key %q", pa, e)
		}
	})
}
