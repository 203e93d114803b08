package protocol_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/verify/tier"
)

// edit replaces a text in a file with another one.
type edit struct{ file, from, to string }

// scriptMutants are mistakes that authors of lockers make, introduced into the JavaScript locker. A case of
// lockconform finds each of them by the must that it breaks.
var scriptMutants = []struct {
	name, runs, must string
	edits            []edit
}{
	{"validity from the answer", "validity", "(M46)", []edit{
		{"mutex.js", "this.ttl, rev, sent, this.#number(rev))", "this.ttl, rev, now(), this.#number(rev))"},
	}},
	{"validity of a renewal from the answer", "validity-renewed", "(M46)", []edit{
		{"mutex.js", "const { sent, ttl } = this.#sent.get(r) ?? {};", "const { ttl } = this.#sent.get(r) ?? {}, sent = now();"},
	}},
	{"late answer", "late-answer-waiting", "(M48)", []edit{
		{"mutex.js", "const late = now() >= sent + validity(this.ttl);", "const late = false;"},
	}},
	{"late answer to a renewal", "late-renewal", "(M49)", []edit{
		{"mutex.js", "if (this.ended || now() >= this.until || now() >= sent + validity(ttl)) {", "if (false) {"},
		{"mutex.js", "if (now() >= this.until) return this.end(\"lost\");", "if (now() >= this.until) return;"},
	}},
	{"record left behind by a late renewal", "late-renewal", "(M49)", []edit{
		{"mutex.js", "      this.bucket.erase(this.key, rev, { ...this.fields, t: this.number });\n      return this.end(\"lost\");", "      return this.end(\"lost\");"},
	}},
	{"renewals without the time of the attempt", "renewal", "writes the same record", []edit{
		{"mutex.js", "{ ...this.fields, r, t: this.number, l: ttl }", "{ ...this.fields, at: 0, r, t: this.number, l: ttl }"},
	}},
	{"renewals of what says that it is fixed", "renewal", "*fixed* leases", []edit{
		{"mutex.js", "const rec = { v: 1, s: this.status,", "const rec = { v: 1, s: this.status, f: true,"},
	}},
	{"TTL below a second, rounded up to one", "ttl-range", "only rounding would raise to 1 s", []edit{
		{"record.js", "if (!(ms >= 1000) || s > 86400)", "if (!(ms > 0) || s > 86400)"},
	}},
	{"TTL of days, of a lease that is renewed", "ttl-range", "refuses all other TTLs", []edit{
		{"record.js", "s > 86400)", "s > 366 * 86400)"},
	}},
	{"extension by any TTL", "extend-range", "refuses all other TTLs", []edit{
		{"locker.js", "r.ttl ? ttlSeconds(r.ttl) : undefined", "r.ttl ? Math.ceil(r.ttl / 1000) : undefined"},
	}},
	{"one id for all claims", "ids", "(M26)", []edit{
		{"record.js", "export const newId = () => Array", "let one;\nexport const newId = () => one ??= Array"},
	}},
	{"ids of a generator that each process seeds alike", "ids", "(M26)", []edit{
		{"record.js", "export const newId = () => Array.from(randomBytes(26),", "let seed = 0;\nexport const newId = () => Array.from(Buffer.alloc(26, seed++),"},
	}},
	{"a float read as an integer", "places-readable", "(M32)", []edit{
		{"record.js", "readF64 = () => (super.readF64(), NaN);", "readF64 = () => super.readF64();"},
	}},
	{"every bucket taken for one without replicas and mirrors", "bucket-alone", "(M2)", []edit{
		{"reads.js", "  c.num_replicas === 1 && !cluster", "  true || !cluster"},
		{"reads.js", "if (h(\"Nats-Stream\") !== this.stream) {", "if (false) {"},
	}},
	{"unconditional delete", "release-exact", "(M36)", []edit{
		{"bucket.js", "h.set(\"Nats-Expected-Last-Subject-Sequence\"", "if (!tombstone) h.set(\"Nats-Expected-Last-Subject-Sequence\""},
	}},
	{"read as proof: a lease goes on as long as its record is there", "outage", "(M46)", []edit{
		{"mutex.js", "if (a.kind === \"refused\") await this.#refused(a.n).catch(() => {});", "if (a.kind === \"silent\" && (await this.bucket.read(this.key))?.rec.id === this.id) this.#believe(now(), ttl);"},
	}},
	{"read as proof: the own record, as of the read", "lost-answer", "(M46)", []edit{
		{"mutex.js", "this.#stored(attempt, m.rev); // M60", "((attempt.w.sent = now()), this.#stored(attempt, m.rev)); // M60"},
	}},
	{"notification as proof: the lock is free", "forged-tombstone", "(M75)", []edit{
		{"mutex.js", "(m) => m.gone && this.hear(m)); // M44: the loop reads", "(m) => m.gone && ((this.freed = m.rev), this.bell.ring()));"},
		{"mutex.js", "await this.bell.wait(Math.min(next, pauses.next().value, this.left));", "await this.bell.wait(Math.min(next, pauses.next().value, this.left)); if (this.freed) [E, this.freed] = [this.freed, 0];"},
	}},
	{"notification as proof: the lease has ended", "forged-record", "(M44)", []edit{
		{"mutex.js", "(m) => own(m) || this.#kick());", "(m) => own(m) || this.end(\"lost\"));"},
	}},
	{"dropped TTL", "ttl", "whole seconds with an `s`", []edit{
		{"bucket.js", "h.set(\"Nats-TTL\"", "if (tombstone) h.set(\"Nats-TTL\""},
	}},
	{"dropped TTL of renewals", "renewal", "whole seconds with an `s`", []edit{
		{"bucket.js", "h.set(\"Nats-TTL\"", "if (!rec.r) h.set(\"Nats-TTL\""},
	}},
	{"truncated TTL", "ttl-fraction", "(M35)", []edit{
		{"record.js", "const s = Math.ceil(ms / 1000);", "const s = Math.floor(ms / 1000);"},
	}},
	{"adoption of a broken record", "broken-attempt", "(M59)", []edit{
		{"mutex.js", "if (m.rec.s === BROKEN) {\n      this.over = true; // M59", "if (false) {\n      this.over = true; // M59"},
		{"mutex.js", "const attempt = m.rec.s === this.status && !m.rec.r", "const attempt = !m.rec.r"},
	}},
	{"forgotten guard: a claim without an expectation", "held", "(M36)", []edit{
		{"bucket.js", "h.set(\"Nats-Expected-Last-Subject-Sequence\"", "if (!rec.a) h.set(\"Nats-Expected-Last-Subject-Sequence\""},
	}},
	{"own place believed after its end", "place-ended", "(M71)", []edit{
		{"mutex.js", "get valid() { return !this.ended &&", "get valid() { return this.fields.s === WAITING || !this.ended &&"},
	}},
}

// mutate applies edits to the files in dir. Each text to be replaced must occur exactly once.
func mutate(t *testing.T, dir string, edits []edit) {
	t.Helper()
	for _, e := range edits {
		path := filepath.Join(dir, e.file)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(text), e.from), "%s has to have once: %s", e.file, e.from)
		require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), e.from, e.to, 1)), 0o600))
	}
}

// finding is what "lockconform --json" reports about a case.
type finding struct {
	Name, Must, Result, Violated, Expected, Seen string
	Seconds                                      float64
}

// broken returns the sentence that was violated.
func (f finding) broken() string {
	if f.Violated != "" {
		return f.Violated
	}
	return f.Must
}

// conform runs cases against the locker in dir and returns their findings by name.
func conform(t *testing.T, lockconform, dir, cases string) map[string]finding {
	t.Helper()
	judge := exec.CommandContext(t.Context(), lockconform, "--json", "--parallel", "4", "--run", cases, "--", "node", "locker.js")
	judge.Dir = dir
	out, err := judge.Output()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		assert.NoError(t, err, "%s", out) // 1: a case failed
	}
	found := map[string]finding{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); dec.More(); {
		var f finding
		if !assert.NoError(t, dec.Decode(&f), "%s", out) {
			break
		}
		found[f.Name] = f
	}
	return found
}

// TestMutantsBreakWhatTheSpecificationSays checks that each mutant's must is in the specification, so that a reworded
// sentence fails here and not only in the proof tier.
func TestMutantsBreakWhatTheSpecificationSays(t *testing.T) {
	pages, err := filepath.Glob("../../../docs/protocol/*.md")
	require.NoError(t, err)
	var all strings.Builder
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		all.WriteString(strings.Join(strings.Fields(string(text)), " ") + "\n")
	}
	for _, m := range scriptMutants {
		assert.Contains(t, all.String(), m.must, m.name)
	}
}

// For each mutant of the JavaScript locker there is a case that finds it, and finds it again when repeated. The
// locker itself passes these cases.
func TestJavaScriptMutants(t *testing.T) {
	tier.Proof(t)
	dir, lockconform := scripts(t), built(t, "cmd/lockconform")

	cases := []string{}
	for _, m := range scriptMutants {
		cases = append(cases, m.runs)
	}
	found := conform(t, lockconform, dir, strings.Join(cases, ","))
	for _, name := range cases {
		assert.Equal(t, "ok", found[name].Result, "%s: expected %s; seen %s", name, found[name].Expected, found[name].Seen)
	}

	two := make(chan struct{}, 2)
	for _, m := range scriptMutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			two <- struct{}{}
			defer func() { <-two }()
			mutant := t.TempDir()
			names, err := filepath.Glob(filepath.Join(dir, "*.js*"))
			require.NoError(t, err)
			for _, name := range names {
				text, err := os.ReadFile(name)
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(mutant, filepath.Base(name)), text, 0o600))
			}
			require.NoError(t, os.Symlink(filepath.Join(dir, "node_modules"), filepath.Join(mutant, "node_modules")))
			mutate(t, mutant, m.edits)
			var twice sync.WaitGroup
			for range 2 {
				twice.Go(func() {
					began := time.Now()
					f := conform(t, lockconform, mutant, m.runs)[m.runs]
					assert.Equal(t, "failed", f.Result, "case %s", m.runs)
					assert.Contains(t, f.broken(), m.must, "case %s: expected %s; seen %s", m.runs, f.Expected, f.Seen)
					t.Logf("%s in %v: expected %s; seen %s", m.runs, time.Since(began).Round(100*time.Millisecond), f.Expected, f.Seen)
				})
			}
			twice.Wait()
		})
	}
}
