package bucket

import (
	"errors"

	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
)

// AnswerOf classifies the reply to a conditional write.
func AnswerOf(a kvstore.Answer) core.Answer {
	conflict, refused := errors.AsType[*kvstore.ConflictError](a.Err)
	switch {
	case a.Err == nil:
		return core.Answer{Revision: a.Revision}
	case refused:
		return core.Answer{Refusal: core.Conflict, Last: conflict.Last}
	case errors.Is(a.Err, kvstore.ErrInFlight):
		return core.Answer{Refusal: core.InFlight}
	case errors.Is(a.Err, kvstore.ErrFull):
		return core.Answer{Refusal: core.Full}
	case kvstore.NotSent(a.Err), errors.Is(a.Err, kvstore.ErrNoStream):
		return core.Answer{Refusal: core.Never}
	}
	return core.Answer{Refusal: core.Unsure}
}
