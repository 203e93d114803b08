package protocol_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

const root = "../../.."

var (
	fenced = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")
	cited  = regexp.MustCompile(`\bM(\d+)\b`)
)

// deleted lists the numbers of musts that no longer exist. They are never assigned again.
var deleted = []int{
	1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 20, 22, 25, 30, 31, 33, 43, 57, 58, 64, 76, 78, 79, 86, 100, 110, 111, 112, 113,
	115, 119, 121, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138, 140, 141, 142, 143, 150,
}

// TestMusts checks that each must of the specification has a number of its own and that only deleted numbers are
// missing, so that a test can cite a must and a change can delete one.
func TestMusts(t *testing.T) {
	musts := kit.Specify(t, root).Musts
	highest := slices.Max(slices.Collect(maps.Keys(musts)))
	require.Greater(t, highest, 100)
	levels := map[kit.Rule]int{}
	for n := 1; n <= highest; n++ {
		must, there := musts[n]
		assert.Equal(t, !slices.Contains(deleted, n), there, "M%d: a must keeps its number, and none has that of a deleted one", n)
		levels[must]++
	}
	for level := 1; level <= 5; level++ {
		assert.Positive(t, levels[kit.Rule{Level: level}], "level %d", level)
	}
	scripts, err := filepath.Glob(root + "/examples/javascript/*.js")
	require.NoError(t, err)
	for _, script := range scripts {
		text, err := os.ReadFile(script)
		require.NoError(t, err)
		for _, m := range cited.FindAllStringSubmatch(string(text), -1) {
			n, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			assert.Contains(t, musts, n, "%s cites M%d, which there is not", script, n)
		}
	}
}

// wired is one message of the transcript.
type wired struct {
	by, arrow, subject string
	headers            map[string]string
	json, hex          string
}

// wire reads the document's transcript. Each line that is not indented begins a message and is followed by the
// message's headers and its body, as JSON and in hex.
func wire(t *testing.T, text string) (all []wired) {
	t.Helper()
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		inside, indented := strings.CutPrefix(line, "    ")
		if !indented {
			words := strings.SplitN(line, " ", 3)
			require.GreaterOrEqual(t, len(words), 2, line)
			w := wired{by: words[0], arrow: words[1], headers: map[string]string{}}
			if len(words) == 3 {
				w.subject = words[2]
			}
			all = append(all, w)
			continue
		}
		require.NotEmpty(t, all, line)
		w := &all[len(all)-1]
		name, value, header := strings.Cut(inside, ": ")
		switch {
		case strings.HasPrefix(inside, "{"), w.json != "" && !json.Valid([]byte(w.json)):
			w.json += inside
		case header:
			w.headers[name] = value
		default:
			w.hex += inside
		}
	}
	return all
}

// record requires that body is the record that the document shows as JSON.
func (w wired) record(t *testing.T, body []byte) {
	t.Helper()
	var shown, sent any
	require.NoError(t, json.Unmarshal([]byte(w.json), &shown), "%s", w.json)
	var fields map[string]any
	require.NoError(t, msgpack.Unmarshal(body, &fields))
	text, err := json.Marshal(fields)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &sent))
	require.Equal(t, shown, sent)
}

// body returns what is sent.
func (w wired) body(t *testing.T) []byte {
	t.Helper()
	if w.hex == "" {
		return []byte(w.json)
	}
	body, err := hex.DecodeString(w.hex)
	require.NoError(t, err)
	w.record(t, body)
	return body
}

// got requires that the server has sent the document's message.
func (w wired) got(t *testing.T, m *nats.Msg) {
	t.Helper()
	headers := map[string]string{}
	for name, values := range m.Header {
		headers[name] = strings.Join(values, ", ")
	}
	if at, found := headers["Nats-Time-Stamp"]; found {
		_, err := time.Parse(time.RFC3339Nano, at)
		require.NoError(t, err)
		headers["Nats-Time-Stamp"] = anyTime
	}
	require.Equal(t, w.headers, headers)
	switch {
	case w.json != "":
		w.record(t, m.Data)
	case w.arrow == "⇠":
		require.Equal(t, w.subject, m.Subject)
	default:
		require.Equal(t, w.subject, string(m.Data))
	}
}

// TestWire replays the lock that the document takes and releases over the wire, in a bucket with the document's
// configuration. A real server must send the replies that the document shows.
func TestWire(t *testing.T) {
	var transcript []wired
	var bucket bytes.Buffer
	for _, block := range fenced.FindAllStringSubmatch(kit.Specify(t, root).Pages["wire"], -1) {
		if block[1] == "json" {
			require.NoError(t, json.Compact(&bucket, []byte(block[2])))
		} else {
			transcript = append(transcript, wire(t, block[2])...)
		}
	}
	testutil.Bubble(t, func(t *testing.T, s *testutil.Server) {
		nc := s.Connect()
		created, err := nc.Request("$JS.API.STREAM.CREATE.KV_natslock", bucket.Bytes(), kit.Patience)
		require.NoError(t, err)
		var asked, got any
		answer := struct{ Config *any }{&got}
		require.NoError(t, json.Unmarshal(bucket.Bytes(), &asked))
		require.NoError(t, json.Unmarshal(created.Data, &answer))
		delete(asked.(map[string]any), "subjects") // a list, which within does not compare
		require.True(t, within(asked, got), "%s", created.Data)

		answers := map[string]*nats.Subscription{}
		notified := map[string]*nats.Subscription{}
		steps := map[string]int{}
		for _, w := range transcript {
			steps[w.arrow]++
			switch w.arrow {
			case "subscribes":
				subject := strings.TrimPrefix(w.subject, "to ")
				notified[w.by], err = nc.SubscribeSync(subject)
				require.NoError(t, err)
			case "→":
				m := &nats.Msg{Subject: w.subject, Reply: nc.NewInbox(), Header: nats.Header{}, Data: w.body(t)}
				for name, value := range w.headers {
					m.Header.Set(name, value)
				}
				answers[w.by], err = nc.SubscribeSync(m.Reply)
				require.NoError(t, err)
				require.NoError(t, nc.PublishMsg(m))
			case "←", "⇠":
				from := answers[w.by]
				if w.arrow == "⇠" {
					from = notified[w.by]
				}
				require.NotNil(t, from, "%+v", w)
				m, err := from.NextMsg(kit.Patience)
				require.NoError(t, err, "%+v", w)
				w.got(t, m)
			default:
				require.Fail(t, "no step of the transcript", "%+v", w)
			}
		}
		require.Greater(t, steps["→"], 6)
		require.Equal(t, 2, steps["⇠"])

		js, err := jetstream.New(nc)
		require.NoError(t, err)
		info, err := kvstore.Inspect(t.Context(), js, kvstore.Config{})
		require.NoError(t, err)
		findings, err := kvstore.Examine(kvstore.Config{}, info)
		require.NoError(t, err)
		for _, f := range findings {
			require.Equal(t, kvstore.Fine, f.Level, "%+v", f)
		}
	})
}
