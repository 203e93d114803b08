package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// bareSide is the upper bound: the speed of conditional publishes to the same bucket on the
// same server, without a lock around them. A grant and a release are one publish each, and a
// hand-over is a release, a notification and a claim. bareSide does not renew, has no queue,
// does not resolve lost responses, and trusts every notification.
var bareSide = Side{
	Name: "bare publishes", Server: "nats", Waiters: 1,
	Setup: "the limit: two conditional publishes on natslock's own bucket, no lock",
	Open: func(ctx context.Context, s *Servers) (*Client, error) {
		maker, c, err := openNatslock(ctx, s) // creates the bucket
		if err != nil {
			return nil, err
		}
		closeNatslock(maker, c)
		nc, js, err := connectJetStream(s)
		if err != nil {
			return nil, err
		}
		stream, err := js.Stream(ctx, "KV_natslock")
		if err != nil {
			nc.Close()
			return nil, err
		}
		notify := strings.TrimSuffix(stream.CachedInfo().Config.RePublish.Destination, ">")
		bare := &bareClient{nc: nc, stream: stream, notify: notify, last: map[string]uint64{}}
		return &Client{Lock: bare.lock, Close: nc.Close}, nil
	},
}

type bareClient struct {
	nc     *nats.Conn
	stream jetstream.Stream
	notify string // prefix that replaces barePrefix in the subjects of notifications

	mu   sync.Mutex
	last map[string]uint64 // sequence of this client's last tombstone, by subject
}

const barePrefix = "$KV.natslock."

// bareValue is as large as one of the library's records.
var bareValue = make([]byte, 100)

// refusedError is the server's refusal of a publish that expected the wrong last sequence.
type refusedError struct{ last uint64 }

func (r *refusedError) Error() string { return fmt.Sprintf("wrong last sequence: %d", r.last) }

// message returns the message that takes or releases a lock.
func message(subject string, expect uint64, take bool) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Header.Set("Nats-Expected-Last-Subject-Sequence", strconv.FormatUint(expect, 10))
	m.Data = bareValue
	if take {
		m.Header.Set("Nats-TTL", "15s")
	} else {
		m.Header.Set("Nats-TTL", "1s")
		m.Header.Set("KV-Operation", "DEL")
	}
	return m
}

func (c *bareClient) publish(ctx context.Context, subject string, expect uint64, take bool) (uint64, error) {
	for {
		r, err := c.nc.RequestMsgWithContext(ctx, message(subject, expect, take))
		if err != nil {
			return 0, err
		}
		if seq, ok := sequence(r.Data); ok {
			return seq, nil
		}
		var ack struct {
			Error struct {
				Code        int    `json:"err_code"`
				Description string `json:"description"`
			} `json:"error"`
		}
		if err := json.Unmarshal(r.Data, &ack); err != nil {
			return 0, fmt.Errorf("%s: %w", r.Data, err)
		}
		switch n, found := strings.CutPrefix(ack.Error.Description, "wrong last sequence: "); {
		case ack.Error.Code == 10164: // another write is in flight
			time.Sleep(100 * time.Microsecond)
		case found:
			last, err := strconv.ParseUint(n, 10, 64)
			if err != nil {
				return 0, err
			}
			return 0, &refusedError{last}
		default:
			return 0, fmt.Errorf("publish: %s", r.Data)
		}
	}
}

// sequence extracts the sequence from an acknowledgment without the cost of a decoder. It
// returns false if there is none.
func sequence(ack []byte) (uint64, bool) {
	if bytes.Contains(ack, []byte(`"error"`)) {
		return 0, false
	}
	_, rest, found := bytes.Cut(ack, []byte(`"seq":`))
	if !found {
		return 0, false
	}
	var seq uint64
	digits := 0
	for ; digits < len(rest) && '0' <= rest[digits] && rest[digits] <= '9'; digits++ {
		seq = seq*10 + uint64(rest[digits]-'0')
	}
	return seq, digits > 0
}

func (c *bareClient) lock(ctx context.Context, name string) (Unlock, uint64, error) {
	subject := barePrefix + "lock." + name
	c.mu.Lock()
	last := c.last[subject]
	c.mu.Unlock()
	held, err := c.publish(ctx, subject, last, true)
	refused, ok := errors.AsType[*refusedError](err)
	if ok && refused.last == 0 { // the tombstone has expired
		held, err = c.publish(ctx, subject, 0, true)
		refused, ok = errors.AsType[*refusedError](err)
	}
	if ok {
		held, err = c.wait(ctx, subject)
	}
	if err != nil {
		return nil, 0, err
	}
	return func(ctx context.Context) error {
		last, err := c.publish(ctx, subject, held, false)
		if err != nil {
			return err
		}
		c.mu.Lock()
		c.last[subject] = last
		c.mu.Unlock()
		return nil
	}, 0, nil
}

// wait claims the lock when the first notification of a tombstone arrives.
func (c *bareClient) wait(ctx context.Context, subject string) (uint64, error) {
	notices := make(chan *nats.Msg, 16)
	sub, err := c.nc.ChanSubscribe(c.notify+strings.TrimPrefix(subject, barePrefix), notices)
	if err != nil {
		return 0, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	// The response to this claim proves that the subscription is active.
	held, err := c.publish(ctx, subject, 0, true)
	refused, ok := errors.AsType[*refusedError](err)
	if !ok {
		return held, err
	}
	record, err := c.stream.GetLastMsgForSubject(ctx, subject)
	if err == nil && record.Sequence >= refused.last && record.Header.Get("KV-Operation") == "DEL" {
		if held, err = c.publish(ctx, subject, record.Sequence, true); err == nil {
			return held, nil
		}
	}
	retry := time.NewTicker(time.Second) // tombstones last no longer than that
	defer retry.Stop()
	for {
		expect := uint64(0)
		select {
		case m := <-notices:
			if m.Header.Get("KV-Operation") != "DEL" {
				continue
			}
			// The server's headers come after the writer's.
			seq := m.Header.Values("Nats-Sequence")
			if expect, err = strconv.ParseUint(seq[len(seq)-1], 10, 64); err != nil {
				return 0, err
			}
		case <-retry.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		held, err := c.publish(ctx, subject, expect, true)
		if _, refused := errors.AsType[*refusedError](err); !refused {
			return held, err
		}
	}
}
