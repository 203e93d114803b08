package history

import (
	"context"
	"slices"

	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
)

// mostKnown limits the revisions kept per key. A token rests on a recent revision, except that
// a writer's token falls behind by one revision for each renewal of its gate during the drain.
const mostKnown = 512

// knowledge holds the revisions that a client knows from its acknowledged writes and from its
// reads. The recorder's mutex guards it.
type knowledge struct {
	revisions map[string][]uint64 // by key
}

// of reports whether the client knows the record that a token rests on.
func (k *knowledge) of(key string, token uint64) bool {
	return slices.Contains(k.revisions[key], record.TokenRevision(token))
}

func (k *knowledge) learn(key string, revision uint64) {
	list := k.revisions[key]
	if slices.Contains(list, revision) {
		return
	}
	if list = append(list, revision); len(list) > mostKnown {
		list = list[len(list)-mostKnown:]
	}
	k.revisions[key] = list
}

// Over wraps a client's store and records the revisions that the client learns. It must wrap
// the store that injects faults, because faults lose answers.
func (r *Recorder) Over(client string, kv kvstore.KV) kvstore.KV {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := &knowledge{revisions: map[string][]uint64{}}
	r.known[client] = k
	return &observed{kv, r, k}
}

// observed is a store that records its answers.
type observed struct {
	kvstore.KV
	r *Recorder
	k *knowledge
}

func (o *observed) learn(records ...kvstore.Record) {
	o.r.mu.Lock()
	defer o.r.mu.Unlock()
	for _, rec := range records {
		o.k.learn(rec.Key, rec.Revision)
	}
}

func (o *observed) Send(w kvstore.Write, done func(kvstore.Answer)) (forget func(), err error) {
	return o.KV.Send(w, func(a kvstore.Answer) {
		if a.Err == nil {
			o.learn(kvstore.Record{Key: w.Key, Revision: a.Revision})
		}
		done(a)
	})
}

func (o *observed) Get(ctx context.Context, key string, min uint64) (kvstore.Record, error) {
	rec, err := o.KV.Get(ctx, key, min)
	if err == nil {
		o.learn(rec)
	}
	return rec, err
}

func (o *observed) List(ctx context.Context, pattern string, min uint64, opts ...kvstore.ListOption) (kvstore.Listing, error) {
	l, err := o.KV.List(ctx, pattern, min, opts...)
	if err == nil {
		o.learn(l.Beside)
	}
	return l, err
}
