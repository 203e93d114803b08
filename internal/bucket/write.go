package bucket

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// Write sends w and waits up to [AnswerTimeout] for the reply. If none arrives, the outcome is unknown.
func (b *Bucket) Write(ctx context.Context, w kvstore.Write) (uint64, error) {
	return b.writeWithin(ctx, AnswerTimeout, w)
}

func (b *Bucket) writeWithin(ctx context.Context, within time.Duration, w kvstore.Write) (uint64, error) {
	ch := make(chan kvstore.Answer, 1)
	forget, err := b.Send(w, func(a kvstore.Answer) { ch <- a })
	if err != nil {
		return 0, err
	}
	a, answered := b.Answer(ctx, ch, w.Key, within)
	if !answered {
		forget()
	}
	return a.Revision, a.Err
}

// WriteAlone is like [Bucket.Write], but repeats the write until no other write to the key is in flight, because
// several clients may be deleting the same record. It waits for up to [AnswerTimeout] in total.
func (b *Bucket) WriteAlone(ctx context.Context, w kvstore.Write) (uint64, error) {
	return b.writeAloneWithin(ctx, AnswerTimeout, w)
}

func (b *Bucket) writeAloneWithin(ctx context.Context, within time.Duration, w kvstore.Write) (uint64, error) {
	ctx, cancel := answerWithin(ctx, within)
	defer cancel()
	for try := 0; ; try++ {
		revision, err := b.writeWithin(ctx, within, w)
		if !errors.Is(err, kvstore.ErrInFlight) {
			return revision, err
		}
		if err := clock.Sleep(ctx, clock.InFlightBackoff(try)); err != nil {
			return 0, err
		}
	}
}

// Tombstone returns the value of a tombstone for the claim in body. The tombstone's token is 0 if the claim was not
// granted.
func (b *Bucket) Tombstone(status record.Status, body record.Body) ([]byte, error) {
	left := record.Body{Status: status, ID: body.ID, Client: b.Client, Token: body.Token, Grants: body.Grants, Waits: body.Waits}
	return left.Encode()
}

// Delete replaces the record under key, at exactly revision, with the tombstone of a claim that holds nothing.
func (b *Bucket) Delete(ctx context.Context, key string, revision uint64, id string) error {
	_, err := b.delete(ctx, key, revision, id)
	return err
}

func (b *Bucket) delete(ctx context.Context, key string, revision uint64, id string) (tombstone uint64, err error) {
	value, err := b.Tombstone(record.StatusGone, record.Body{ID: id})
	if err != nil {
		return 0, err
	}
	return b.WriteAlone(ctx, kvstore.Write{Key: key, Value: value, Expect: revision, Delete: true})
}

// Probe returns the last revision of a key, or 0 if there is none. It sends the stream leader a write that the leader
// refuses, and the refusal also proves that earlier subscriptions are in place; see [kvstore.NoRevision].
func (b *Bucket) Probe(ctx context.Context, key string) (last uint64, err error) {
	return b.ProbeWithin(ctx, AnswerTimeout, key)
}

// ProbeWithin is like [Bucket.Probe], but waits for up to within.
func (b *Bucket) ProbeWithin(ctx context.Context, within time.Duration, key string) (last uint64, err error) {
	_, err = b.writeAloneWithin(ctx, within, kvstore.Write{Key: key, Expect: kvstore.NoRevision, Delete: true}) //safety:probe-refused
	conflict, refused := errors.AsType[*kvstore.ConflictError](err)
	switch {
	case refused:
		return conflict.Last, nil
	case err == nil:
		return 0, fmt.Errorf("%w: the server accepted a write to %q that it had to refuse", kvstore.ErrBucketConfig, key)
	}
	return 0, err
}

// Answer waits up to d for ch to deliver the reply to a write to key. If none arrives, the error matches [ErrNoAnswer].
func (b *Bucket) Answer(ctx context.Context, ch <-chan kvstore.Answer, key string, d time.Duration) (a kvstore.Answer, answered bool) {
	pause := min(DeniedAfter, d)
	waited := pause
	t := b.Timer(pause)
	defer b.TimerDone(t)
	for {
		select {
		case a := <-ch:
			if a.Err == nil {
				b.Acknowledged(a.Revision)
			}
			return a, true
		case <-ctx.Done():
			return kvstore.Answer{Err: context.Cause(ctx)}, false
		case <-b.conn.gone:
			return kvstore.Answer{Err: errGone}, false
		case <-t.C:
			if err := b.Denied(key); err != nil {
				return kvstore.Answer{Err: err}, false
			}
			if waited >= d {
				return kvstore.Answer{Err: fmt.Errorf("%w within %v", ErrNoAnswer, d)}, false
			}
			pause = min(2*pause, d-waited)
			waited += pause
			t.Reset(pause)
		}
	}
}
