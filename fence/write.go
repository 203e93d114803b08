package fence

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/plain"
)

// Publish publishes a message to a subject of the fence's stream and waits for the
// acknowledgment. The server stores the message only if no higher token has opened the fence.
//
// If Publish returns a nil error, the message was stored. If the error matches [ErrSuperseded],
// [ErrLost] or [ErrInvalid], or contains the server's *[jetstream.APIError], the message was
// not stored. After [ErrUnknown] the message may have been stored, or may be stored later, even
// after messages that were published after it. Publish waits until ctx ends, or for 5 s if ctx
// has no deadline. If ctx has ended, the error matches ctx's.
//
// Each lane has at most one message in flight. Further calls wait their turn, first come, first
// served. For more throughput use [Fence.PublishBatch] or [WithLanes].
func (f *Fence) Publish(ctx context.Context, subject string, data []byte) (*jetstream.PubAck, error) {
	return f.PublishMsg(ctx, &nats.Msg{Subject: subject, Data: data})
}

// PublishMsg is like [Fence.Publish], but takes a message with headers. It does not modify m.
//
// The server checks only one expectation per message, and the fence uses it. PublishMsg
// therefore rejects headers that set other expectations. It also rejects batch headers;
// schedule headers, with which the server would publish the message later and without the
// fence; and a rollup of the whole stream, which would remove the fence's message. The error
// then matches [ErrInvalid].
//
// If the stream has already seen the message's Nats-Msg-Id, the acknowledgment has Duplicate
// set, and no message was stored. A replicated stream checks for duplicates before it checks
// the fence, so this acknowledgment does not prove that the fence is still open.
func (f *Fence) PublishMsg(ctx context.Context, m *nats.Msg) (*jetstream.PubAck, error) {
	if err := f.ready(ctx); err != nil {
		return nil, err
	}
	if m == nil {
		return nil, f.named(fmt.Errorf("publish: %w: the message is nil", ErrInvalid))
	}
	what := fmt.Sprintf("publish to %.512q", m.Subject)
	out, own, err := f.message(m)
	switch {
	case err != nil:
		return nil, f.named(fmt.Errorf("%s: %w", what, err))
	case own:
		return nil, f.named(fmt.Errorf("%s: %w: a message can have only one expectation, which the fence uses; use PublishBatch", what, ErrInvalid))
	}
	return f.write(ctx, what, false, func(ctx context.Context, l *lane) (*jetstream.PubAck, error) {
		f.guard(out, l) //safety:fence-guard
		return f.js.PublishMsg(ctx, out)
	})
}

// guard makes a message conditional on the fence's message in lane l.
func (f *Fence) guard(m *nats.Msg, l *lane) {
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, decimal(l.sequence))
	m.Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, l.subject)
}

// message returns a ready-to-send copy of m, and whether m has its own expectation.
func (f *Fence) message(m *nats.Msg) (out *nats.Msg, own bool, err error) {
	if err := literal(m.Subject); err != nil {
		return nil, false, err
	}
	if m.Subject == f.subject || strings.HasPrefix(m.Subject, f.subject+".") { //safety:fence-subjects
		return nil, false, fmt.Errorf("%w: %q and the subjects below it belong to the fence", ErrInvalid, f.subject)
	}
	out = &nats.Msg{Subject: f.destination(m.Subject), Data: m.Data, Header: nats.Header{}}
	maps.Copy(out.Header, m.Header)
	for name, values := range m.Header {
		switch lower := strings.ToLower(name); {
		case lower == strings.ToLower(jetstream.ExpectedLastSubjSeqHeader), lower == strings.ToLower(jetstream.ExpectedLastSubjSeqSubjHeader):
			own = true
		case strings.HasPrefix(lower, "nats-expected-last-"), strings.HasPrefix(lower, "nats-schedule"), strings.HasPrefix(lower, "nats-batch-"): //safety:fence-headers
			return nil, false, fmt.Errorf("%w: a fenced message must not have the header %s", ErrInvalid, name)
		case lower == strings.ToLower(jetstream.MsgRollup) && (len(values) != 1 || values[0] != jetstream.MsgRollupSubject):
			return nil, false, fmt.Errorf("%w: a rollup of the stream would remove the fence's message", ErrInvalid)
		}
	}
	out.Header.Set(jetstream.ExpectedStreamHeader, f.stream)
	return out, own, nil
}

// write waits for a free lane and calls send until the server has stored or rejected the write.
// It never resends a write that may have been stored. expects means that the write has
// conditions in addition to the fence's.
func (f *Fence) write(ctx context.Context, what string, expects bool, send func(context.Context, *lane) (*jetstream.PubAck, error)) (*jetstream.PubAck, error) {
	fail := func(err error) (*jetstream.PubAck, error) {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w (%w)", err, plain.EndOf(ctx))
		}
		return nil, f.named(fmt.Errorf("%s: %w", what, err))
	}
	limited, cancel := bounded(ctx, writePatience)
	defer cancel()
	var l *lane
	select {
	case l = <-f.free:
		defer func() { f.free <- l }()
	case <-limited.Done():
		return fail(errors.New("not sent: timed out waiting for other writes of this fence"))
	}
	for try := 0; ; try++ {
		if err := f.Err(); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		if limited.Err() != nil {
			return fail(errors.New("not stored: timed out before the server accepted it"))
		}
		ack, err := send(limited, l)
		if err == nil {
			return ack, nil
		}
		refusal, final := refused(err)
		switch {
		case refusal == nil && certain(err): //safety:fence-unknown
			return fail(fmt.Errorf("not stored: %w", err))
		case refusal == nil:
			return fail(fmt.Errorf("%w: %w; the write may be stored, now or later", ErrUnknown, f.why(err)))
		case refusal.ErrorCode == batchesOff:
			return fail(fmt.Errorf("%w: %w: %w", ErrUnfit, errTurnedOff, refusal))
		case final || refusal.Code == unavailable:
			return fail(fmt.Errorf("the server rejected it: %w", err))
		case refusal.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence:
			open, err := f.judge(limited, l, try)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", what, err)
			}
			if open && expects {
				return fail(fmt.Errorf("an expectation of the message was not met: %w", refusal))
			}
		}
		// A fence message, or a write whose response was lost, is still being replicated.
		if clock.Sleep(limited, clock.InFlightBackoff(try)) != nil {
			return fail(fmt.Errorf("not stored: %w", refusal))
		}
	}
}

// absent is the number of rejections after which the fence is considered lost if the server
// does not have its message. That many rejections take about a second, which is long enough for
// a deposed leader to be replaced.
const absent = 20

// judge finds out why the server rejected the guard of lane l. open means that the fence's
// message is still the last one on the lane's subject, so the guard was correct. If judge
// returns an error, it has ended the fence. If it returns false and no error, the caller should
// try again.
func (f *Fence) judge(ctx context.Context, l *lane, try int) (open bool, err error) {
	there, sequence, err := f.read(ctx, l.subject)
	switch {
	case errors.Is(err, ErrUnfit):
		return false, f.end(f.named(fmt.Errorf("%w: another message replaced the fence's: %w", ErrLost, err)))
	case err != nil:
		return false, nil // the next try will tell
	case sequence == l.sequence:
		return true, nil
	case there.Token > f.token:
		return false, f.end(f.named(fmt.Errorf("%w: it was opened with token %d; the write was not stored; stop working", ErrSuperseded, there.Token)))
	case there.Token == f.token && sequence > l.sequence:
		return false, f.end(f.named(fmt.Errorf("%w: it was opened again with the same token; the write was not stored", ErrSuperseded)))
	case try >= absent || there.Token > 0 && sequence > l.sequence:
		return false, f.end(f.named(fmt.Errorf("%w: message %d no longer exists on %q; the write was not stored; open the fence again if the lock is still held", ErrLost, l.sequence, l.subject)))
	}
	return false, nil
}

// certain reports whether a write that got no response was certainly not stored, because it was
// not sent or reached no stream.
func certain(err error) bool {
	return errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, errNotSent) || errors.Is(err, nats.ErrBadSubject)
}

func decimal(n uint64) string { return strconv.FormatUint(n, 10) }
