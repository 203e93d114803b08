package fence

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/plain"
)

// Open opens a fence on a literal subject of a stream, for the holder of the given fencing
// token. Once Open has returned without an error, the stream stores no write through a
// fence on that subject with a lower token. The same token can open the fence again, for
// example after a crash, which supersedes its previous fence.
//
// All holders of a lock must use the same stream and subject, and nothing else may write to
// that subject. Several locks can have fences on one stream, each on its own subject.
//
// The error matches [ErrSuperseded] if a higher token has opened the fence, [ErrUnfit] if the
// stream cannot keep the fence, [ErrInvalid] if an argument is invalid, and [ErrUnknown] if
// no response arrived. After an error, no one is excluded yet. Open keeps trying until ctx
// ends, or for 30 s if ctx has no deadline. If ctx has ended, the error matches ctx's.
func Open(ctx context.Context, js jetstream.JetStream, stream, subject string, token uint64, opts ...Option) (*Fence, error) {
	if js == nil || ctx == nil {
		return nil, fmt.Errorf("open fence: %w: the context or the JetStream is nil", ErrInvalid)
	}
	f := &Fence{nc: js.Conn(), js: js, api: apiPrefix(js), stream: stream, subject: subject, token: token, lanes: 1}
	if err := f.configure(opts); err != nil {
		return nil, f.named(fmt.Errorf("open: %w", err))
	}
	limited, cancel := bounded(ctx, openPatience)
	defer cancel()
	if err := f.open(limited); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w (%w)", err, plain.EndOf(ctx))
		}
		return nil, f.named(fmt.Errorf("open: %w", err))
	}
	return f, nil
}

func (f *Fence) configure(opts []Option) error {
	if f.stream == "" || len(f.stream) > maxStream || strings.ContainsAny(f.stream, " \t\r\n.*>/\\") {
		return fmt.Errorf("%w: %.64q is not a valid stream name", ErrInvalid, f.stream)
	}
	if err := literal(f.subject); err != nil { //safety:fence-literal
		return err
	}
	if f.token == 0 {
		return fmt.Errorf("%w: 0 is not a valid fencing token", ErrInvalid)
	}
	for _, opt := range opts {
		if opt == nil {
			return fmt.Errorf("%w: an option is nil", ErrInvalid)
		}
		if err := opt(f); err != nil {
			return err
		}
	}
	return nil
}

// open moves the fence in three steps. First it writes the token and the number of lanes to
// the fence's subject, which makes that subject refuse every lower token. Then it moves the
// other lanes, including those of earlier holders. Finally it moves the first lane again,
// which proves that the first step was in force until all lanes had moved.
func (f *Fence) open(ctx context.Context) error {
	if _, err := f.inspect(ctx); err != nil {
		return err
	}
	marked, sequence, err := f.raise(ctx, f.subject, mark{Token: f.token, Lanes: f.lanes})
	if err != nil {
		return err
	}
	// Inspect the stream again after the first step. That way, even if something has removed
	// the message in which a lower token recorded its number of lanes, either that token's
	// lanes are listed now or its own third step fails.
	listed, err := f.inspect(ctx)
	if err != nil {
		return err
	}
	lanes := marked.Lanes
	if listed > lanes { //safety:fence-lanes-listed
		lanes = listed
	}
	f.free = make(chan *lane, f.lanes)
	for i := 1; i < lanes; i++ {
		l := &lane{subject: f.laneSubject(i)}
		if _, l.sequence, err = f.raise(ctx, l.subject, mark{Token: f.token, Lanes: lanes}); err != nil {
			return err
		}
		if i < f.lanes {
			f.free <- l
		}
	}
	if lanes > 1 { //safety:fence-confirm
		if _, sequence, err = f.raise(ctx, f.subject, mark{Token: f.token, Lanes: lanes}); err != nil {
			return err
		}
	}
	f.free <- &lane{subject: f.subject, sequence: sequence}
	return nil
}

// mark is the payload of a message on a fence subject.
type mark struct {
	Format int    `json:"fence"` // 1
	Token  uint64 `json:"token"`
	Lanes  int    `json:"lanes"` // the most that any holder has used
	Write  string `json:"write"` // identifies a message whose acknowledgment was lost
}

const format = 1

// raise writes m to a subject unless a message with a higher token is already there. It
// returns the mark that the stream has stored, and its sequence.
func (f *Fence) raise(ctx context.Context, subject string, m mark) (mark, uint64, error) {
	m.Format, m.Write = format, rand.Text()
	var last error // why the previous try failed
	created := false
	for try := 0; ; try++ {
		if try > 0 {
			if clock.Sleep(ctx, clock.ShortBackoff(try)) != nil {
				return mark{}, 0, fmt.Errorf("%w: gave up: %w", ErrUnknown, last)
			}
		}
		there, sequence, err := f.read(ctx, subject)
		switch {
		case errors.Is(err, ErrUnfit):
			return mark{}, 0, err
		case err != nil:
			last = err
			continue
		case sequence > 0 && there.Write == m.Write:
			return there, sequence, nil
		case there.Token > m.Token: //safety:fence-greater
			return mark{}, 0, fmt.Errorf("%w: it was opened with token %d", ErrSuperseded, there.Token)
		case sequence == 0 && created: //safety:fence-renamed
			return mark{}, 0, fmt.Errorf("%w: the server acknowledged the message on %q, but the stream does not have it there; remove the mapping that renames it or the limit that removes it", ErrUnfit, subject)
		}
		if there.Lanes > m.Lanes { //safety:fence-lanes
			m.Lanes = there.Lanes
		}
		stored, err := f.store(ctx, subject, m, sequence)
		switch {
		case err == nil && sequence > 0:
			return m, stored, nil
		case err == nil:
			// The condition was that the subject is empty, which also holds if the server
			// maps the message to another subject that is empty. The next read shows whether
			// it did.
			created, last = true, errors.New("the message was not read back")
			try = 0
		default:
			if refusal, final := refused(err); final {
				return mark{}, 0, fmt.Errorf("%w on %q: %w", ErrUnfit, subject, refusal)
			}
			last = err
		}
	}
}

// store writes a mark on the condition that the subject is still at sequence expect. The
// condition is on the message's own subject. If the server maps the message to another
// subject, it checks the condition against that subject and rejects the message.
func (f *Fence) store(ctx context.Context, subject string, m mark, expect uint64) (uint64, error) {
	data, err := json.Marshal(m)
	if err != nil {
		return 0, err
	}
	msg := &nats.Msg{Subject: f.destination(subject), Data: data, Header: nats.Header{}}
	msg.Header.Set(jetstream.ExpectedStreamHeader, f.stream)
	msg.Header.Set(jetstream.ExpectedLastSubjSeqHeader, decimal(expect)) //safety:fence-cas
	ctx, cancel := context.WithTimeout(ctx, tryPatience)
	defer cancel()
	ack, err := f.js.PublishMsg(ctx, msg)
	if err != nil {
		return 0, f.why(err)
	}
	return ack.Sequence, nil
}

// read returns the last mark on a fence subject and its sequence, according to the stream's
// leader. The sequence is 0 if there is no mark.
func (f *Fence) read(ctx context.Context, subject string) (mark, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, tryPatience)
	defer cancel()
	ask, err := json.Marshal(map[string]string{"last_by_subj": subject})
	if err != nil {
		return mark{}, 0, err
	}
	answer, err := f.nc.RequestWithContext(ctx, f.api+"STREAM.MSG.GET."+f.stream, ask)
	if err != nil {
		return mark{}, 0, fmt.Errorf("read %q: %w", subject, f.why(err))
	}
	var got struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Subject  string `json:"subject"`
			Sequence uint64 `json:"seq"`
			Data     []byte `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(answer.Data, &got); err != nil {
		return mark{}, 0, fmt.Errorf("read %q: unreadable response: %w", subject, err)
	}
	switch {
	case got.Error != nil && got.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return mark{}, 0, nil
	case got.Error != nil:
		return mark{}, 0, fmt.Errorf("read %q: %w", subject, got.Error)
	case got.Message == nil || got.Message.Sequence == 0:
		return mark{}, 0, fmt.Errorf("read %q: the response contains no message", subject)
	}
	var m mark
	// The message may also be the tombstone of a deleted key. Either way, the highest token
	// is lost, so the message must not be replaced without an operator's consent.
	if err := json.Unmarshal(got.Message.Data, &m); err != nil || m.Format != format || m.Token == 0 || m.Lanes < 1 || m.Lanes > MaxLanes { //safety:fence-foreign
		return mark{}, got.Message.Sequence, fmt.Errorf("%w: message %d on %q is not a fence message, so the highest token is unknown; "+
			"stop all holders, purge the subject, and acquire the lock again", ErrUnfit, got.Message.Sequence, subject)
	}
	return m, got.Message.Sequence, nil
}

// why adds the permission that the server denied, if that explains the missing response.
func (f *Fence) why(err error) error {
	if last := f.nc.LastError(); errors.Is(err, context.DeadlineExceeded) && errors.Is(last, nats.ErrPermissionViolation) {
		return fmt.Errorf("%w; the server denied this user a subject: %w", errNoAnswer, last)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		// Do not wrap the error of this context, which is not the caller's. If the caller's
		// context has ended, Open or write adds its error.
		return errNoAnswer
	}
	return err
}

var errNoAnswer = errors.New("no response arrived in time")

// unavailable is the status of an error response when there is no leader, or when resources
// are temporarily exhausted.
const unavailable = 503

// refused returns the API error with which the server rejected a message, and whether it is
// final.
func refused(err error) (refusal *jetstream.APIError, final bool) {
	refusal, ok := errors.AsType[*jetstream.APIError](err)
	if !ok {
		return nil, false
	}
	switch refusal.ErrorCode {
	case jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return refusal, false
	}
	return refusal, refusal.Code != unavailable
}
