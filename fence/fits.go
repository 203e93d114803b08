package fence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/kvstore"
)

// inspect returns an error if the stream cannot keep the fence. Otherwise it returns the number
// of the fence's lanes, up to the highest one that has a message in the stream.
func (f *Fence) inspect(ctx context.Context) (lanes int, err error) {
	var info *jetstream.StreamInfo
	for try := 0; ; try++ {
		if info, err = f.info(ctx); err == nil {
			break
		}
		if refusal, final := refused(err); final {
			if refusal.ErrorCode == jetstream.JSErrCodeStreamNotFound {
				return 0, fmt.Errorf("%w: no such stream in this account and domain; create it, or connect to the account or domain it is in: %w", ErrUnfit, refusal)
			}
			return 0, fmt.Errorf("read the stream information: %w", refusal)
		}
		if clock.Sleep(ctx, clock.ShortBackoff(try)) != nil {
			return 0, fmt.Errorf("%w: read the stream information: %w", ErrUnknown, err)
		}
	}
	for subject := range info.State.Subjects {
		if n, err := strconv.Atoi(strings.TrimPrefix(subject, f.subject+".")); err == nil && n < MaxLanes {
			lanes = max(lanes, n+1)
		}
	}
	if setting, remedy := f.unfit(&info.Config, max(f.lanes, lanes)); setting != "" {
		return 0, fmt.Errorf("%w: %s; %s", ErrUnfit, setting, remedy)
	}
	f.batches = info.Config.AllowAtomicPublish
	return lanes, nil
}

// info requests the stream's configuration, and the lanes that have messages in it.
func (f *Fence) info(ctx context.Context) (*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, tryPatience)
	defer cancel()
	ask, err := json.Marshal(map[string]string{"subjects_filter": f.subject + ".*"})
	if err != nil {
		return nil, err
	}
	answer, err := f.nc.RequestWithContext(ctx, f.api+"STREAM.INFO."+f.stream, ask)
	if err != nil {
		return nil, f.why(err)
	}
	var got struct {
		Error *jetstream.APIError `json:"error"`
		jetstream.StreamInfo
	}
	if err := json.Unmarshal(answer.Data, &got); err != nil {
		return nil, fmt.Errorf("unreadable response: %w", err)
	}
	if got.Error != nil {
		return nil, got.Error
	}
	if got.Config.Name != f.stream {
		return nil, errors.New("the response is for another stream")
	}
	return &got.StreamInfo, nil
}

// unfit returns a stream setting that would lose, reject or rename the fence's messages, and
// the remedy. It accepts settings under which a fence fails safe by rejecting all writes.
func (f *Fence) unfit(c *jetstream.StreamConfig, lanes int) (setting, remedy string) {
	const another = "use another stream"
	switch version := c.Metadata["_nats.ver"]; {
	// 2.11.0 to 2.11.6 ignore a condition if its headers are in a different order.
	case !kvstore.ServerFits(version): //safety:fence-server
		if version == "" {
			version = "older than 2.11"
		}
		return fmt.Sprintf("its nats-server is version %.32s; %s or later is required", version, kvstore.MinServer), "upgrade every server that may keep the stream"
	case c.Mirror != nil:
		return "it is a mirror", "open the fence on the stream it mirrors"
	case len(c.Sources) > 0: //safety:fence-sources
		return "it has sources, whose messages replace the fence's without a condition", another
	case c.SubjectTransform != nil: //safety:fence-transform
		return "it has a subject transform, which may rename messages to or from the fence's subject", "remove the transform, or " + another
	case c.Sealed:
		return "it is sealed", another
	case c.NoAck: //safety:fence-noack
		return "it does not acknowledge messages (no_ack)", "unset no_ack, or " + another
	case c.Retention != jetstream.LimitsPolicy: //safety:fence-retention
		return "its retention policy removes consumed messages", "use a stream with \"limits\" retention"
	// Per-message TTLs do not help: a restarted server removes an old message even if its TTL is
	// "never".
	case c.MaxAge > 0: //safety:fence-age
		return fmt.Sprintf("it removes messages after %v (max_age, a bucket's TTL)", c.MaxAge), "unset it, or " + another
	case c.Discard == jetstream.DiscardOld && (c.MaxMsgs > 0 || c.MaxBytes > 0): //safety:fence-discard
		return "it discards old messages, including the fence's, when it is full (max_msgs or max_bytes)", "set discard to \"new\", or remove these limits"
	case c.DiscardNewPerSubject: //safety:fence-per-subject
		return "it rejects further messages on a full subject (discard_new_per_subject), including the next holder's", "unset it, or " + another
	case c.PersistMode == jetstream.AsyncPersistMode: //safety:fence-async
		return "it acknowledges messages before they are written (persist_mode async), and may lose the fence's in a crash", "unset the mode, or " + another
	case c.AllowMsgCounter:
		return "it accepts only counters (allow_msg_counter)", another
	}
	for i := range lanes {
		if s := f.laneSubject(i); !captured(c.Subjects, s) {
			return fmt.Sprintf("it does not capture the subject %q", s), "add it to the stream's subjects"
		}
	}
	return "", ""
}

// captured reports whether any of the patterns matches a literal subject.
func captured(patterns []string, subject string) bool {
	parts := strings.Split(subject, ".")
next:
	for _, pattern := range patterns {
		tokens := strings.Split(pattern, ".")
		for i, token := range tokens {
			switch {
			case token == ">" && i < len(parts):
				return true
			case i >= len(parts) || token != "*" && token != parts[i]:
				continue next
			}
		}
		if len(tokens) == len(parts) {
			return true
		}
	}
	return false
}
