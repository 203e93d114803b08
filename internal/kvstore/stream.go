package kvstore

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// doubtEvery is the minimum interval between verifications caused by refusals.
	doubtEvery = 10 * time.Second
	// doubtFullEvery is the minimum interval between verifications caused by a lack of
	// room.
	doubtFullEvery = time.Second
	// roomStep is the number of further writes after which the store verifies the bucket
	// again if the last verification has not succeeded.
	roomStep = 256
	// lagRetries is how many times a lagging replica is asked again. Most lag by less than
	// a millisecond, so the pauses start at firstLag and double, adding up to 77 ms.
	lagRetries = 8
	firstLag   = 300 * time.Microsecond
)

// stream keeps what the store knows about the bucket's stream, and sends requests to the
// stream leader.
type stream struct {
	*line
	cfg      Config
	name     string
	seen     atomic.Pointer[view]
	imported bool // each request gets only one reply
	clock    serverClock

	roomUntil  atomic.Uint64 // there is room for records up to this revision
	doubtedAt  atomic.Int64  // when a refusal last caused a verification, relative to the store's creation
	mirrorSeen atomic.Bool   // a mirror has answered a read; even a bucket on one server may have an unnoticed mirror
}

func newStream(js jetstream.JetStream, cfg Config) *stream {
	s := &stream{line: newLine(js, cfg.Bucket), cfg: cfg, name: streamName(cfg.Bucket)}
	// A service import passes on only one reply per request, unless its export says
	// otherwise. Each record then needs its own request.
	s.imported = js.Options().Domain == "" && s.apiPrefix != defaultAPI
	s.seen.Store(&view{})
	s.doubtedAt.Store(-int64(doubtEvery))
	return s
}

// view holds what the last verification found.
type view struct {
	notify   string // prefix of republished subjects, with the trailing dot; "" if none
	direct   bool
	alone    bool // has neither replicas nor mirrors
	room     error
	created  time.Time
	warnings []string
	config   json.RawMessage
}

// Bucket returns the bucket's name.
func (s *stream) Bucket() string { return s.cfg.Bucket }

// Now estimates the servers' wall clock; see [KV].
func (s *stream) Now() time.Time { return s.clock.now() }

// Alone reports whether only one server can answer; see [KV].
func (s *stream) Alone() bool { return s.seen.Load().alone && !s.mirrorSeen.Load() }

// Room returns an error if the last verification found too little room; see [KV].
func (s *stream) Room() error { return s.seen.Load().room }

// checkRoom requests a verification once the acknowledged writes may have filled the
// bucket.
func (s *stream) checkRoom(revision uint64) {
	if until := s.roomUntil.Load(); revision > until && s.roomUntil.CompareAndSwap(until, revision+roomStep) {
		s.doubt()
	}
}

// adopt verifies a stream and remembers what the store needs to know about it, whether or
// not it is fit.
func (s *stream) adopt(info *Info) error {
	warnings, err := verify(s.cfg, info)
	s.roomUntil.Store(roomUntil(&info.StreamInfo))
	s.seen.Store(&view{
		warnings: warnings, direct: info.Config.AllowDirect, created: info.Created,
		notify: notifies(info.Config.RePublish, s.prefix+">"),
		alone:  single(&info.StreamInfo),
		room:   Room(&info.StreamInfo),
		config: info.Raw,
	})
	return err
}

// single reports whether only the server that replied can answer for the stream.
func single(info *jetstream.StreamInfo) bool {
	return servers(info) == 1 && len(info.Alternates) <= 1
}

// servers returns the number of servers that can answer for a stream. While the stream is
// being moved, that number exceeds the configured number of replicas.
func servers(info *jetstream.StreamInfo) int {
	n := info.Config.Replicas
	if info.Cluster != nil {
		n = max(n, 1+len(info.Cluster.Replicas))
	}
	return n
}

type infoRequest struct {
	Filter string `json:"subjects_filter,omitempty"`
	Offset int    `json:"offset,omitempty"`
}

type infoResponse struct {
	Error *jetstream.APIError `json:"error,omitempty"`
	Info
	Total  int `json:"total"`
	Offset int `json:"offset"`
	Limit  int `json:"limit"`
}

func (r *infoResponse) apiError() *jetstream.APIError { return r.Error }

// info asks the stream leader for the stream's info, which includes the settings. If they
// differ from those last verified, it requests a verification.
func (s *stream) info(ctx context.Context, req infoRequest) (*infoResponse, error) {
	resp, err := s.ask(ctx, req, own)
	if err == nil {
		s.compare(&resp.Info)
	}
	return resp, err
}

// compare requests a verification if info differs from what was last verified.
func (s *stream) compare(info *Info) {
	seen := s.seen.Load()
	alone := single(&info.StreamInfo)
	if seen.created.Equal(info.Created) && seen.alone == alone && bytes.Equal(seen.config, info.Raw) {
		return
	}
	if !alone {
		s.crowded(seen) //safety:replicas-noticed
	}
	s.doubt()
}

// crowded records that other servers can answer too, any of which may lag.
func (s *stream) crowded(seen *view) {
	if seen.alone {
		now := *seen
		now.alone = false
		s.seen.CompareAndSwap(seen, &now) // fails if the bucket was verified in the meantime
	}
}

// doubt requests a verification of the bucket.
func (s *stream) doubt() { s.callHooks(Doubtful) }

// doubtRefusal requests a verification after a refusal, but only once per interval, because
// the refusal may persist and may have a cause other than the settings.
func (s *stream) doubtRefusal(every time.Duration) {
	now := s.now()
	if last := s.doubtedAt.Load(); now-time.Duration(last) >= every && s.doubtedAt.CompareAndSwap(last, int64(now)) {
		s.doubt()
	}
}

// ask asks the stream leader for the stream's info.
func (s *stream) ask(ctx context.Context, req infoRequest, route route) (*infoResponse, error) {
	var body []byte
	if req != (infoRequest{}) {
		body, _ = json.Marshal(req)
	}
	var resp infoResponse
	if err := s.infoOf(ctx, "STREAM.INFO."+s.name, body, &resp, route); err != nil {
		return nil, err
	}
	s.clock.read(resp.TimeStamp)
	return &resp, nil
}

// infoOf makes a request whose response contains a stream's settings.
func (s *stream) infoOf(ctx context.Context, op string, body []byte, resp *infoResponse, route route) error {
	if err := s.api(ctx, op, body, resp, route); err != nil {
		return err
	}
	return resp.read()
}

// apiReply is a JSON response of the JetStream API.
type apiReply interface{ apiError() *jetstream.APIError }

// api makes a request to the JetStream API and decodes the response into resp.
func (s *stream) api(ctx context.Context, op string, body []byte, resp apiReply, route route) error {
	msg, err := s.roundTrip(ctx, s.apiPrefix+op, body, route)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(msg.Data, resp); err != nil {
		return fmt.Errorf("%w: unreadable answer to %s: %w", ErrUnavailable, op, err)
	}
	switch e := resp.apiError(); {
	case e == nil:
		return nil
	case e.ErrorCode == jetstream.JSErrCodeStreamNotFound || e.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return fmt.Errorf("%w: %w", ErrNotFound, e)
	default:
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, op, e)
	}
}

// stateAt repeats State until the result proves that a key it does not name does not exist.
// To prove that, the result must be complete and come from a leader that has applied
// revision min.
func (s *stream) stateAt(ctx context.Context, pattern string, min uint64) (State, error) {
	for try := 0; ; try++ {
		st, err := s.State(ctx, pattern)
		if err != nil {
			return State{}, err
		}
		// A deposed leader may lack what its successor has acknowledged.
		if st.LastRevision >= min && st.Complete { //safety:state-as-of
			return st, nil
		}
		lasting := fmt.Errorf("%w: the leader is at revision %d, but at least %d was acknowledged", ErrUnavailable, st.LastRevision, min)
		if !st.Complete {
			lasting = fmt.Errorf("%w: the responding server is not the leader, so a key missing from its reply may still exist", ErrUnavailable)
		}
		if err := lagged(ctx, try, lasting); err != nil {
			return State{}, err
		}
	}
}

// State asks the leader for its state and for the keys that match pattern; see [KV].
func (s *stream) State(ctx context.Context, pattern string) (State, error) {
	var req infoRequest
	if pattern != "" {
		if err := checkPattern(pattern); err != nil {
			return State{}, err
		}
		req.Filter = s.prefix + pattern
	}
	var st State
	var led time.Time // when the responding server became leader
	for {
		info, err := s.info(ctx, req)
		if err != nil {
			return State{}, err
		}
		if req.Offset == 0 {
			// The server reads its state before its list of subjects, so every page
			// contains the state of the first page.
			st = State{LastRevision: info.State.LastSeq, Created: info.Created, Time: info.TimeStamp, Replicas: servers(&info.StreamInfo), Notifies: notifies(info.Config.RePublish, s.prefix+">") != ""}
			led = ledSince(&info.StreamInfo)
			st.Complete = st.Replicas == 1 || !led.IsZero() //safety:state-complete
		}
		if !led.Equal(ledSince(&info.StreamInfo)) { //safety:state-term
			st.Complete = false // two servers or two terms, so a key may be missing from both pages
		}
		for subject := range info.State.Subjects {
			st.Keys = append(st.Keys, strings.TrimPrefix(subject, s.prefix))
		}
		req.Offset += len(info.State.Subjects)
		// The response is paged, and a reader on the second page still holds its lock.
		if len(info.State.Subjects) == 0 || req.Offset >= info.Total { //safety:state-pages
			slices.Sort(st.Keys)
			return st, nil
		}
	}
}

// ledSince returns when the responding server became the leader of the stream. The result
// is zero if the server is not the leader, or is the only server. A server first reads its
// state, then whether it leads, and then the keys. It leads only once it has applied its
// whole log, so a leader's response has all the keys, even if the server was elected while
// preparing it.
func ledSince(info *jetstream.StreamInfo) time.Time {
	if info.Cluster == nil || info.Cluster.LeaderSince == nil {
		return time.Time{}
	}
	return *info.Cluster.LeaderSince
}

// lagged pauses before a lagging replica is asked again. After lagRetries attempts it
// returns lasting without a pause. It returns ctx's error if ctx ends.
func lagged(ctx context.Context, try int, lasting error) error {
	if try == lagRetries {
		return lasting
	}
	return pause(ctx, firstLag<<try)
}
