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

// MaxBatch is the largest number of messages for [Fence.PublishBatch], unless the server's
// limit is lower.
const MaxBatch = 1000

const (
	batchID       = "Nats-Batch-Id"
	batchSequence = "Nats-Batch-Sequence"
	batchCommit   = "Nats-Batch-Commit"
)

// PublishBatch publishes several messages at once: the server stores all of them, with
// consecutive sequences, or none. The acknowledgement has the sequence of the last one. A
// batch of a hundred messages is nearly as fast as a hundred unguarded messages. The
// stream needs the setting allow_atomic, or the error matches [ErrUnfit].
//
// A message of a batch may expect a last sequence of its subject, with the header
// Nats-Expected-Last-Subject-Sequence. At least one message must not, because it carries
// the fence's expectation. If an expectation fails, the error matches
// [jetstream.ErrKeyExists]. Otherwise outcomes and errors are those of [Fence.PublishMsg],
// and the messages are not changed. A batch has 1 to [MaxBatch] messages, or the error
// matches [ErrInvalid].
func (f *Fence) PublishBatch(ctx context.Context, messages ...*nats.Msg) (*jetstream.PubAck, error) {
	if err := f.ready(ctx); err != nil {
		return nil, err
	}
	what := fmt.Sprintf("publish a batch of %d", len(messages))
	out, guarded, expects, err := f.batch(messages)
	if err != nil {
		return nil, f.named(fmt.Errorf("%s: %w", what, err))
	}
	return f.write(ctx, what, expects, func(ctx context.Context, l *lane) (*jetstream.PubAck, error) {
		f.guard(out[guarded], l) //safety:fence-guard-batch
		return f.commit(ctx, out)
	})
}

// publishExpecting publishes a message with an expectation of its own, after a message
// with the fence's, in one batch.
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

// batch returns the messages in the form to be sent, the index of the one that is to
// carry the guard, and whether others have expectations of their own.
func (f *Fence) batch(messages []*nats.Msg) (out []*nats.Msg, guarded int, expects bool, err error) {
	if len(messages) == 0 || len(messages) > MaxBatch {
		return nil, 0, false, fmt.Errorf("%w: a batch has from 1 to %d messages", ErrInvalid, MaxBatch)
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
		return nil, 0, false, fmt.Errorf("%w: each message of the batch has an expectation; the fence needs a message without", ErrInvalid)
	}
	return out, guarded, expects, nil
}

// commit sends a batch and waits for the answer to its last message. A server that
// misses part of the batch stores nothing.
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
		return nil, fmt.Errorf("unreadable answer: %w", err)
	}
	switch {
	case got.Error != nil:
		return nil, got.Error
	case got.Batch != id || got.Count != len(messages) || got.Sequence == 0:
		return nil, errors.New("the answer does not acknowledge the batch")
	}
	return &got.PubAck, nil
}

var errNoBatches = errors.New("it takes no batches; set allow_atomic and open the fence again")

// batchesOff is the server's error code for a batch where allow_atomic is off.
const batchesOff jetstream.ErrorCode = 10174

// errTurnedOff names the usual culprit: a start-up call that writes the whole configuration.
var errTurnedOff = errors.New("allow_atomic was turned off while the fence was open, as js.CreateOrUpdateKeyValue does; set allow_atomic again, and open the bucket with js.KeyValue")

// errNotSent: the last message was not sent, and without it a batch is never stored.
var errNotSent = errors.New("the batch was not sent to its end")
