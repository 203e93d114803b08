package fence

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	kvSubjects  = "$KV."
	kvStream    = "KV_"
	kvOperation = "KV-Operation"
)

var validKey = regexp.MustCompile(`^[-/_=.a-zA-Z0-9]+$`)

// KV writes to a key-value bucket through a fence. Create one with [Fence.KV]. Read the
// bucket with package jetstream, but not before [Open] has returned.
type KV struct {
	f      *Fence
	bucket string
}

// KV returns a KV for the bucket that the fence is on. The fence must be open on the stream
// "KV_<bucket>" and a subject "$KV.<bucket>.<key>", whose key is then reserved for the
// fence. If the fence is on a different stream, the error matches [ErrInvalid]. KV does no
// I/O.
func (f *Fence) KV(bucket string) (*KV, error) {
	if err := f.ready(context.Background()); err != nil {
		return nil, err
	}
	if f.stream != kvStream+bucket {
		return nil, f.named(fmt.Errorf("%w: bucket %.64q is stored in stream %.64q", ErrInvalid, bucket, kvStream+bucket))
	}
	return &KV{f, bucket}, nil
}

// Put sets the value of a key unconditionally, and returns the new revision. Outcomes and
// errors are those of [Fence.Publish].
func (kv *KV) Put(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	m, err := kv.message(key, value)
	if err != nil {
		return 0, err
	}
	return revisionOf(kv.f.PublishMsg(ctx, m))
}

// Delete marks a key as deleted, like the Delete method of [jetstream.KeyValue]. Outcomes
// and errors are those of [Fence.Publish].
func (kv *KV) Delete(ctx context.Context, key string) error {
	m, err := kv.message(key, nil)
	if err != nil {
		return err
	}
	m.Header.Set(kvOperation, "DEL")
	_, err = kv.f.PublishMsg(ctx, m)
	return err
}

// Update sets the value of a key if the key is at the given revision, and returns the new
// revision. If the key is at another revision, the error matches [jetstream.ErrKeyExists].
//
// Because the server checks only one expectation per message, Update sends a batch of two.
// The first message carries the fence's expectation and is stored under the key "<fence's
// key>.guard". The bucket's stream must have allow_atomic set, or the error matches
// [ErrUnfit]. The CreateOrUpdateKeyValue method of [jetstream.JetStream] turns that setting
// off, so create the bucket once and open it with KeyValue. Other outcomes and errors are
// those of [Fence.Publish].
func (kv *KV) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	m, err := kv.message(key, value)
	if err != nil {
		return 0, err
	}
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, decimal(revision))
	return revisionOf(kv.f.publishExpecting(ctx, m))
}

// Create is like [KV.Update], but for a key that has never had a value or has been deleted.
// If the key has a value, the error matches [jetstream.ErrKeyExists].
func (kv *KV) Create(ctx context.Context, key string, value []byte) (revision uint64, err error) {
	revision, err = kv.Update(ctx, key, value, 0)
	if !errors.Is(err, jetstream.ErrKeyExists) {
		return revision, err
	}
	deleted, readErr := kv.deletedAt(ctx, key)
	if readErr != nil || deleted == 0 {
		return 0, err
	}
	return kv.Update(ctx, key, value, deleted)
}

// deletedAt returns the revision of a key's tombstone, or 0 if the key has a value.
func (kv *KV) deletedAt(ctx context.Context, key string) (uint64, error) {
	ctx, cancel := bounded(ctx, writePatience)
	defer cancel()
	s, err := kv.f.js.Stream(ctx, kv.f.stream)
	if err != nil {
		return 0, err
	}
	m, err := s.GetLastMsgForSubject(ctx, kvSubjects+kv.bucket+"."+key)
	if err != nil {
		return 0, err
	}
	if m.Header.Get(kvOperation) == "" && m.Header.Get(jetstream.MarkerReasonHeader) == "" {
		return 0, nil
	}
	return m.Sequence, nil
}

func (kv *KV) message(key string, value []byte) (*nats.Msg, error) {
	if kv == nil || kv.f == nil {
		return nil, fmt.Errorf("%w: the fence.KV was not created by Fence.KV", ErrInvalid)
	}
	subject := kvSubjects + kv.bucket + "." + key
	if !validKey.MatchString(key) || literal(subject) != nil {
		return nil, kv.f.named(fmt.Errorf("%w: %.64q is not a valid key", ErrInvalid, key))
	}
	return &nats.Msg{Subject: subject, Data: value, Header: nats.Header{}}, nil
}

func revisionOf(ack *jetstream.PubAck, err error) (uint64, error) {
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}
