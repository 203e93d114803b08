package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/fence"
	"github.com/natslock/locks/partition"
)

// partitions is the number of partitions in both the stream and the group. It must never change.
const partitions = 8

// streams creates the two streams. The server stores an event published to events.<key> under
// events.<partition>.<key>. The results need a separate stream, because a fence does not work on a
// stream that renames messages.
func streams(ctx context.Context, js jetstream.JetStream) error {
	for _, c := range []jetstream.StreamConfig{
		{Name: "EVENTS", Subjects: []string{"events.*"}, SubjectTransform: &jetstream.SubjectTransformConfig{
			Source: "events.*", Destination: fmt.Sprintf("events.{{partition(%d,1)}}.{{wildcard(1)}}", partitions),
		}},
		{Name: "RESULTS", Subjects: []string{"results.*.*", "fence.results.*"}},
	} {
		if _, err := js.CreateOrUpdateStream(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// worker holds the state of a partition that this process owns.
type worker struct {
	number int
	token  string
	fence  *fence.Fence
	events jetstream.MessagesContext
}

// The headers of a result carry the sequence of its event and the token of its worker.
const (
	eventHeader = "Event"
	tokenHeader = "Fencing-Token"
)

// open shuts out older owners of the partition, and continues after the last result that they
// wrote, so events need no acknowledgment and none has two results.
func open(ctx context.Context, js jetstream.JetStream, p *partition.Partition) (*worker, error) {
	f, err := fence.Open(ctx, js, "RESULTS", fmt.Sprintf("fence.results.%d", p.Number()), p.Token())
	if err != nil {
		return nil, err
	}
	w := &worker{number: p.Number(), token: strconv.FormatUint(p.Token(), 10), fence: f}
	results, err := js.Stream(ctx, "RESULTS")
	if err != nil {
		return nil, err
	}
	var done uint64
	last, err := results.GetLastMsgForSubject(ctx, fmt.Sprintf("results.%d.*", w.number)) // read from the leader, because RESULTS has no direct gets
	switch {
	case err == nil:
		if done, err = strconv.ParseUint(last.Header.Get(eventHeader), 10, 64); err != nil {
			return nil, err
		}
	case !errors.Is(err, jetstream.ErrMsgNotFound):
		return nil, err
	}
	c, err := js.OrderedConsumer(ctx, "EVENTS", jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{fmt.Sprintf("events.%d.*", w.number)},
		DeliverPolicy:  jetstream.DeliverByStartSequencePolicy, OptStartSeq: done + 1,
		InactiveThreshold: time.Minute,
		MaxResetAttempts:  1, // an outage ends Next, so it cannot keep this process from exiting
	})
	if err != nil {
		return nil, err
	}
	w.events, err = c.Messages()
	return w, err
}

// write publishes the result of an event. It is not interrupted when ctx ends, because the fence
// decides whether the result is stored.
func (w *worker) write(ctx context.Context, event jetstream.Msg) error {
	at, err := event.Metadata()
	if err != nil {
		return err
	}
	key := event.Subject()[strings.LastIndexByte(event.Subject(), '.')+1:]
	result := nats.NewMsg(fmt.Sprintf("results.%d.%s", w.number, key))
	result.Header.Set(eventHeader, strconv.FormatUint(at.Sequence.Stream, 10))
	result.Header.Set(tokenHeader, w.token)
	result.Data = event.Data()
	_, err = w.fence.PublishMsg(context.WithoutCancel(ctx), result)
	return err
}
