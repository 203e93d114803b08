package fence

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// MaxBatch is the maximum number of messages for [Fence.PublishBatch], unless the server's
// limit is lower.
const MaxBatch = 1000

const (
	batchID       = "Nats-Batch-Id"
	batchSequence = "Nats-Batch-Sequence"
	batchCommit   = "Nats-Batch-Commit"
)

// PublishBatch publishes several messages atomically: the server stores all of them, with
// consecutive sequences, or none. The acknowledgment contains the sequence of the last message.
// A batch of a hundred messages is nearly as fast as a hundred unguarded messages. The stream
// must have allow_atomic set, or the error matches [ErrUnfit].
//
// The messages may have their own expectations, in the header
// Nats-Expected-Last-Subject-Sequence. At least one message must have none, because it carries
// the fence's expectation. If an expectation fails, the error matches [jetstream.ErrKeyExists].
// If there are no messages or more than [MaxBatch], the error matches [ErrInvalid]. Otherwise
// outcomes and errors are those of [Fence.PublishMsg]. The messages are not modified.
func (f *Fence) PublishBatch(ctx context.Context, messages ...*nats.Msg) (*jetstream.PubAck, error) {
	if err := f.ready(ctx); err != nil {
		return nil, err
	}
	what := fmt.Sprintf("publish a batch of %d messages", len(messages))
	out, guarded, expects, err := f.batch(messages)
	if err != nil {
		return nil, f.named(fmt.Errorf("%s: %w", what, err))
	}
	return f.write(ctx, what, expects, func(ctx context.Context, l *lane) (*jetstream.PubAck, error) {
		f.guard(out[guarded], l) //safety:fence-guard-batch
		return f.commit(ctx, out)
	})
}

// publishExpecting publishes a message that has its own expectation. It sends a batch in which a
// message with the fence's expectation precedes that message.
func (f *Fence) publishExpecting(ctx context.Context, m *nats.Msg) (*jetstream.PubAck, error) {
	if err := f.ready(ctx); err != nil {
		return nil, err
	}
	what := fmt.Sprintf("publish to %.512q", m.Subject)
	out, _, err := f.message(m)
	switch {
	case err != nil:
		return nil, f.named(fmt.Errorf("%s: %w", what, err))
	case !f.batches:
		return nil, f.named(fmt.Errorf("%s: %w: %w", what, ErrUnfit, errNoBatches))
	}
	return f.write(ctx, what, true, func(ctx context.Context, l *lane) (*jetstream.PubAck, error) {
		guard := &nats.Msg{Subject: f.destination(f.subject + ".guard"), Header: nats.Header{}}
		guard.Header.Set(jetstream.ExpectedStreamHeader, f.stream)
		f.guard(guard, l) //safety:fence-guard-expecting
		return f.commit(ctx, []*nats.Msg{guard, out})
	})
}

// batch returns ready-to-send copies of the messages, the index of the one that will carry the
// guard, and whether any others have their own expectations.
func (f *Fence) batch(messages []*nats.Msg) (out []*nats.Msg, guarded int, expects bool, err error) {
	if len(messages) == 0 || len(messages) > MaxBatch {
		return nil, 0, false, fmt.Errorf("%w: a batch must have 1 to %d messages", ErrInvalid, MaxBatch)
	}
	if !f.batches {
		return nil, 0, false, fmt.Errorf("%w: %w", ErrUnfit, errNoBatches)
	}
	guarded = -1
	for i, m := range messages {
		if m == nil {
			return nil, 0, false, fmt.Errorf("%w: message %d is nil", ErrInvalid, i)
		}
		o, own, err := f.message(m)
		switch {
		case err != nil:
			return nil, 0, false, fmt.Errorf("message %d, to %.512q: %w", i, m.Subject, err)
		case own:
			expects = true
		case guarded < 0:
			guarded = i
		}
		out = append(out, o)
	}
	if guarded < 0 {
		return nil, 0, false, fmt.Errorf("%w: every message of the batch has an expectation; the fence needs one message without", ErrInvalid)
	}
	return out, guarded, expects, nil
}

// commit sends a batch and waits for the response to its last message. If any part of the batch
// does not reach the server, the server stores nothing.
func (f *Fence) commit(ctx context.Context, messages []*nats.Msg) (*jetstream.PubAck, error) {
	id, last := rand.Text(), len(messages)-1
	for i, m := range messages {
		m.Header.Set(batchID, id)
		m.Header.Set(batchSequence, decimal(uint64(i+1)))
		if i == last {
			m.Header.Set(batchCommit, "1")
			break
		}
		if err := f.nc.PublishMsg(m); err != nil {
			return nil, fmt.Errorf("%w: message %d of the batch: %w", errNotSent, i, err)
		}
	}
	answer, err := f.nc.RequestMsgWithContext(ctx, messages[last])
	if err != nil {
		return nil, err
	}
	var got struct {
		Error *jetstream.APIError `json:"error"`
		jetstream.PubAck
		Batch string `json:"batch"`
		Count int    `json:"count"`
	}
	if err := json.Unmarshal(answer.Data, &got); err != nil {
		return nil, fmt.Errorf("unreadable response: %w", err)
	}
	switch {
	case got.Error != nil:
		return nil, got.Error
	case got.Batch != id || got.Count != len(messages) || got.Sequence == 0:
		return nil, errors.New("the response does not acknowledge the batch")
	}
	return &got.PubAck, nil
}

var errNoBatches = errors.New("the stream does not allow atomic batches; set allow_atomic and open the fence again")

// batchesOff is the server's error code for a batch when allow_atomic is off.
const batchesOff jetstream.ErrorCode = 10174

// errTurnedOff names the usual culprit, a startup call that overwrites the whole configuration.
var errTurnedOff = errors.New("allow_atomic was turned off while the fence was open (js.CreateOrUpdateKeyValue does that); set allow_atomic again, and open the bucket with js.KeyValue")

// errNotSent means that the last message was not sent, without which a batch is never stored.
var errNotSent = errors.New("the batch was not sent completely")
