package kvstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/plain"
)

const (
	// openTimeout limits Open if its context has no deadline.
	openTimeout = 10 * time.Second
	// connectionPoll is the interval between checks of a connection that is down.
	connectionPoll = 20 * time.Millisecond
	// openGrace is how much extra time Open gets, after its context has ended, to report
	// what it was doing.
	openGrace = 50 * time.Millisecond
	// leaderPoll is the interval between checks of a stream that has no leader.
	leaderPoll = 100 * time.Millisecond
	// levelTimeout limits the request for the API level, which goes unanswered if this user
	// is not allowed to send it or the account does not import it.
	levelTimeout = time.Second
)

// Open finds the bucket that cfg describes and verifies its settings. It creates the bucket
// if it is missing, unless cfg forbids that. It uses js's JetStream domain or API prefix.
//
// The error matches [ErrInvalidKey] if no bucket can have the given name, [ErrBucketConfig]
// if the bucket is unsafe or on a server older than [MinServer], [ErrNotFound] if the
// bucket is missing and cfg forbids creating it, [ErrPermission] if this user is not
// allowed to look up or create the bucket, and [ErrUnavailable] if JetStream does not
// respond, or if a clustered stream has no leader and therefore accepts no writes. If ctx
// has no deadline, Open waits at most 10 s, even for a connection that is not up yet or is
// reconnecting.
//
// Open logs settings that are safe but not recommended; see [Config.Logger].
func Open(ctx context.Context, js jetstream.JetStream, cfg Config) (*Store, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if js == nil || js.Conn() == nil {
		return nil, fmt.Errorf("%w: no connection given", ErrUnavailable)
	}
	parent := ctx
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, openTimeout)
		defer cancel()
	}
	type opened struct {
		s   *Store
		err error
	}
	// nats.go holds its mutex while it tries to connect, even after ctx has ended, so
	// openConnected may block long after Open has returned.
	done := make(chan opened, 1)
	go func() {
		s, err := openConnected(parent, ctx, js, cfg)
		done <- opened{s, err}
	}()
	select {
	case o := <-done:
		return o.s, o.err
	case <-ctx.Done():
	}
	select {
	case o := <-done: // it noticed the end of ctx itself, and reports what it was doing
		return o.s, o.err
	case <-time.After(openGrace):
		go func() {
			if o := <-done; o.s != nil {
				o.s.Close()
			}
		}()
		err := fmt.Errorf("open bucket %q: %w: the connection is reconnecting", cfg.Bucket, ErrUnavailable)
		if parent.Err() == nil {
			return nil, fmt.Errorf("%w; gave up after %v", err, openTimeout)
		}
		return nil, fmt.Errorf("%w: %w", err, plain.EndOf(parent))
	}
}

// openConnected opens the bucket once the connection is up.
func openConnected(parent, ctx context.Context, js jetstream.JetStream, cfg Config) (*Store, error) {
	for {
		if err := connected(parent, ctx, js.Conn()); err != nil {
			return nil, fmt.Errorf("open bucket %q: %w", cfg.Bucket, err)
		}
		s, err := open(ctx, js, cfg)
		if !errors.Is(err, errAway) || ctx.Err() != nil {
			return s, err
		}
	}
}

// connected waits until nc is up or ctx, a child of parent, ends.
func connected(parent, ctx context.Context, nc *nats.Conn) error {
	for {
		st := nc.Status()
		if st != nats.RECONNECTING && st != nats.CONNECTING && st != nats.DISCONNECTED {
			return nil
		}
		if pause(ctx, connectionPoll) != nil {
			err := fmt.Errorf("%w: connection is %s", ErrUnavailable, strings.ToLower(st.String()))
			if last := nc.LastError(); last != nil {
				err = fmt.Errorf("%w (last error: %w)", err, last)
			}
			if parent.Err() == nil { // never return the error of a context that is not the caller's
				return fmt.Errorf("%w; gave up after %v", err, openTimeout)
			}
			return fmt.Errorf("%w: %w", err, plain.EndOf(parent))
		}
	}
}

// open is Open for a connection that is already up.
func open(ctx context.Context, js jetstream.JetStream, cfg Config) (_ *Store, err error) {
	s := newStore(js, cfg)
	s.maxPayload.Store(s.nc.MaxPayload())
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	info, err := s.ask(ctx, infoRequest{}, shared)
	if errors.Is(err, ErrNotFound) {
		if cfg.NoCreate {
			return nil, fmt.Errorf("open bucket %q: %w, and this client may not create it: either the bucket has not been created yet, or it %s", cfg.Bucket, err, s.elsewhere())
		}
		if err := s.oldServers(ctx); err != nil {
			return nil, err
		}
		info, err = s.create(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("open bucket %q: %w", cfg.Bucket, err)
	}
	if err := s.adopt(&info.Info); err != nil {
		return nil, err
	}
	if err := s.awaitLeader(ctx, &info.StreamInfo); err != nil {
		return nil, fmt.Errorf("open bucket %q: %w", cfg.Bucket, err)
	}
	s.settle(ctx, &info.StreamInfo)
	for _, w := range s.seen.Load().warnings {
		cfg.Logger.Warn("lock bucket: "+w, "bucket", cfg.Bucket)
	}
	return s, nil
}

// Server error codes that nats.go does not define.
const (
	errCodeNoPeers   = 10005 // "no suitable peers for placement"
	errCodeNoStore   = 10049 // "error creating store for stream"
	errCodeNoCluster = 10074 // "replicas > 1 not supported in non-clustered mode"
)

// create creates the bucket. If another client creates it first, that bucket is verified
// like any other.
func (s *stream) create(ctx context.Context) (*infoResponse, error) {
	if s.cfg.Replicas != 0 {
		return s.createWith(ctx, s.cfg)
	}
	cfg := s.cfg
	cfg.Replicas = s.replicas()
	resp, err := s.createWith(ctx, cfg)
	if cfg.Replicas == 1 {
		return resp, err
	}
	apiErr, _ := errors.AsType[*jetstream.APIError](err)
	switch {
	case apiErr == nil:
	// Only the servers in the requested domain, or behind the API prefix, know whether they
	// form a cluster.
	case apiErr.ErrorCode == errCodeNoCluster:
		cfg.Replicas = 1
		return s.createWith(ctx, cfg)
	case apiErr.ErrorCode == errCodeNoPeers:
		return nil, fmt.Errorf("%w: the bucket needs %d servers: wait until they are up, or set Replicas to 1", err, cfg.Replicas)
	}
	return resp, err
}

// replicas returns the default number of replicas for a new bucket.
func (s *stream) replicas() int {
	if s.apiPrefix == defaultAPI && s.nc.ConnectedClusterName() == "" {
		return 1
	}
	return 3
}

// createWith creates the bucket exactly as cfg describes it.
func (s *stream) createWith(ctx context.Context, cfg Config) (*infoResponse, error) {
	sc, err := cfg.StreamConfig()
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(sc)
	if err != nil {
		return nil, err
	}
	var resp *infoResponse
	var apiErr *jetstream.APIError
	for try := 0; ; try++ {
		resp = new(infoResponse) // a response without an error would keep the previous response's error
		err = s.infoOf(ctx, "STREAM.CREATE."+s.name, body, resp, own)
		apiErr, _ = errors.AsType[*jetstream.APIError](err)
		if apiErr == nil || apiErr.ErrorCode != errCodeNoStore || try == 8 {
			break
		}
		// The files of a recently deleted stream of the same name may still exist.
		if err := pause(ctx, 10*time.Millisecond<<try); err != nil {
			return nil, err
		}
	}
	switch {
	case err == nil:
		// Log this, because a client that forgets the domain creates a second bucket that
		// no other client uses.
		s.cfg.Logger.Info("created lock bucket", "bucket", s.cfg.Bucket, "account", s.account(ctx), "domain", s.domainOf(resp),
			"storage", resp.Config.Storage.String(), "replicas", resp.Config.Replicas)
	case apiErr != nil && apiErr.ErrorCode == jetstream.JSErrCodeStreamNameInUse:
		// In a cluster, a stream's name is taken before all servers have learned of the
		// stream.
		for resp, err = s.ask(ctx, infoRequest{}, own); errors.Is(err, ErrNotFound); resp, err = s.ask(ctx, infoRequest{}, own) {
			if err := pause(ctx, 20*time.Millisecond); err != nil {
				return nil, err
			}
		}
		return resp, err
	default:
		return nil, fmt.Errorf("creating it failed: %w", err)
	}
	return resp, nil
}

// domainOf returns the domain of a newly created bucket, for logging. A server outside a
// cluster does not report the domain. The result is "" if there is no domain or it is
// unknown.
func (s *stream) domainOf(made *infoResponse) string {
	named, _ := strings.CutPrefix(s.apiPrefix, "$JS.")
	switch domain, isDomain := strings.CutSuffix(named, ".API."); {
	case made.Domain != "":
		return made.Domain
	case s.apiPrefix == defaultAPI:
		return s.nc.ConnectedDomain()
	case isDomain && named != s.apiPrefix:
		return domain
	}
	return ""
}

// awaitLeader waits until the stream has a leader. Without one the stream accepts no
// writes, although its servers keep answering requests about it.
func (s *stream) awaitLeader(ctx context.Context, info *jetstream.StreamInfo) error {
	for c := info.Cluster; c != nil && c.Name != "" && c.Leader == ""; { //safety:has-leader
		if pause(ctx, leaderPoll) == nil {
			if next, err := s.ask(ctx, infoRequest{}, own); err == nil {
				c = next.Cluster
			} else if ctx.Err() == nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w: it has no leader on cluster %q and accepts no writes. Start the missing servers. "+
				"If none is missing, the stream has stopped (the servers log \"critical write error\"): re-create the bucket: %w", ErrUnavailable, ErrNoStream, c.Name, plain.EndOf(ctx))
		}
	}
	return nil
}

// account returns the name of the connection's account, for logging, or "" if the server
// does not name it.
func (s *stream) account(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	msg, err := s.roundTrip(ctx, "$SYS.REQ.USER.INFO", nil, own)
	if err != nil {
		return ""
	}
	var user struct {
		Data struct {
			Account string `json:"account"`
		} `json:"data"`
	}
	_ = json.Unmarshal(msg.Data, &user)
	return user.Data.Account
}

type accountResponse struct {
	Error *jetstream.APIError `json:"error"`
	API   struct {
		Level int `json:"level"`
	} `json:"api"`
}

func (r *accountResponse) apiError() *jetstream.APIError { return r.Error }

// oldServers returns an error if the server that would create the bucket (in a cluster, the
// meta leader) is too old. It returns nil if it cannot tell, because the request may be
// denied or not imported. The response to the create request names the server's version
// anyway.
func (s *stream) oldServers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, levelTimeout)
	defer cancel()
	var resp accountResponse
	if err := s.api(ctx, "INFO", nil, &resp, own); err != nil || resp.API.Level >= minLevel { //safety:creating-server
		return nil
	}
	return &ConfigError{
		Bucket: s.cfg.Bucket, Setting: serverSetting, Value: describe("", resp.API.Level), Want: MinServer + " or later",
		Repair: byServer + "; the bucket was not created",
	}
}

// settle waits until writes reach a newly created bucket in a cluster. The server that this
// client is connected to may be slower than other servers to learn where the bucket is, and
// until then it reports that no stream accepts the write. settle gives up after a few
// seconds.
func (s *Store) settle(ctx context.Context, info *jetstream.StreamInfo) {
	if info.Cluster == nil || info.Cluster.Name == "" || info.TimeStamp.Sub(info.Created) > openTimeout {
		return
	}
	for try := range 8 {
		// No key has this revision, so the stream can only refuse the write.
		_, err := s.write(ctx, Write{Key: "probe", Expect: 1, TTL: tombstoneTTL})
		if !errors.Is(err, ErrNoStream) || pause(ctx, 10*time.Millisecond<<try) != nil {
			return
		}
	}
}

// Inspect returns the stream info of the bucket, whether or not the bucket is fit, once the
// stream has a leader. It never creates a bucket. Its errors are those of [Open].
func Inspect(ctx context.Context, js jetstream.JetStream, cfg Config) (*Info, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := newStore(js, cfg)
	defer s.Close()
	info, err := s.ask(ctx, infoRequest{}, shared)
	if err == nil && info.Cluster != nil && info.Cluster.Leader == "" {
		if err = s.awaitLeader(ctx, &info.StreamInfo); err == nil {
			info, err = s.ask(ctx, infoRequest{}, shared)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open bucket %q: %w", cfg.Bucket, err)
	}
	return &info.Info, nil
}
