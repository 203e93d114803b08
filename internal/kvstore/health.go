package kvstore

import (
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Denied returns an error if a write to key was recently denied; see [KV].
func (l *line) Denied(key string) error {
	err := l.denied(l.goroutines.Context(), l.putPrefix+key)
	if err != nil {
		l.refused(key)
	}
	return err
}

// Healthy returns nil if the connection is up and the stream accepts writes, as far as the store
// knows without I/O. Otherwise the error matches [ErrUnavailable]. The store becomes unhealthy 5
// s after it sends a write that goes unanswered or is refused for a reason other than a
// conflict, unless the server has acknowledged a write since. It recovers with the next
// acknowledgment, or after a minute without writes.
func (l *line) Healthy() error {
	if l.away() {
		return fmt.Errorf("%w: connection is reconnecting", ErrUnavailable)
	}
	switch st, ok := fromConn(l.goroutines.Context(), &l.sender, stuckAfter, l.nc.Status); {
	case !ok && l.goroutines.Context().Err() == nil:
		return fmt.Errorf("%w: connection is stuck: its network accepts no data, or it is reconnecting", ErrUnavailable)
	case ok && st != nats.CONNECTED && st != nats.DRAINING_SUBS && st != nats.DRAINING_PUBS:
		return fmt.Errorf("%w: connection is %s", ErrUnavailable, strings.ToLower(st.String()))
	}
	for {
		w, refusal, found := l.unanswered(l.now())
		if !found {
			return nil
		}
		if refusal != nil {
			return fmt.Errorf("bucket %q has acknowledged no write for %v: %w; \"lockctl doctor\" shows what is wrong",
				l.bucket, (l.now() - w.at).Round(time.Second), refusal)
		}
		if l.Denied(w.key) == nil {
			return fmt.Errorf("%w: the write to %q has gone unanswered for %v, and bucket %q has acknowledged no write since: "+
				"its stream may have no leader or have stopped; \"lockctl doctor\" shows which",
				ErrUnavailable, w.key, (l.now() - w.at).Round(time.Second), l.bucket)
		}
	}
}
