package core

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/record"
)

// stored returns a record with the fields that the script tests name.
func stored(revision uint64, id string, attempt int, status record.Status) record.Entry {
	e := record.Entry{}
	e.Revision, e.ID, e.Attempt, e.Status = revision, id, attempt, status
	return e
}

// TestOfScripts replays stories that a simulator found, and shrank, after the line that each one is about
// had been removed.
func TestOfScripts(t *testing.T) {
	t.Parallel()
	terms := clock.Terms{TTL: 6 * time.Second, Margin: time.Second}
	t.Run("a late answer", func(t *testing.T) {
		var c Claim
		c.Begin("a101")
		c.AttemptSent(Attempt{Expect: 0, Terms: terms, Sent: 1})
		c.AnswerArrived(Reply{N: 1, Answer: Answer{Refusal: 0, Revision: 102, Last: 0}, At: 5514000001}, true)
		r, _ := c.Next()
		require.Equal(t, Verdict{Outcome: Lost, Delete: 102}, c.JudgeReply(r, 1, 5514000001))
	})
	t.Run("an own record that an operator has broken", func(t *testing.T) {
		var c Claim
		c.Begin("c118")
		c.AttemptSent(Attempt{Expect: 0, Terms: terms, Sent: 1})
		c.AttemptSent(Attempt{Expect: 0, Terms: terms, Sent: 701000001})
		c.AnswerArrived(Reply{N: 2, Answer: Answer{Refusal: 1, Revision: 0, Last: 120}, At: 702000001}, true)
		require.Equal(t, Verdict{Outcome: Lost, Delete: 120}, c.RecordRead(stored(120, "c118", 1, record.StatusBroken), 702000001))
	})
	t.Run("a late renewal", func(t *testing.T) { // of what was sent at 1623000001
		v := ValidFrom(1, terms)
		require.False(t, v.InTime(5205000001))
	})
	t.Run("an attempt that counts from its own sending", func(t *testing.T) {
		var c Claim
		c.Begin("b147")
		c.AttemptSent(Attempt{Expect: 0, Terms: terms, Sent: 9992000001})
		c.AttemptSent(Attempt{Expect: 0, Terms: terms, Sent: 12809000001})
		c.AnswerArrived(Reply{N: 2, Answer: Answer{Refusal: 1, Revision: 0, Last: 149}, At: 12809000001}, true)
		require.Equal(t, Verdict{Outcome: Granted, N: 1, Revision: 149}, c.RecordRead(stored(149, "b147", 1, record.StatusHeld), 12809000001))
	})
}
