package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/natslock"
	"github.com/natslock/locks/natslock/admin"
)

// TestCheckLimits checks that a lock exactly at a limit passes and that one just beyond it does
// not.
func TestCheckLimits(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	three := 3
	queue := func(n int) (q []admin.Waiter) {
		for range n {
			q = append(q, admin.Waiter{Since: now, Goroutines: 1})
		}
		return q
	}
	held := func(h admin.Holder) admin.Info {
		return admin.Info{Kind: admin.KindMutex, Name: "x", Holder: &h}
	}
	// A 15 s lease is renewed after 5 s.
	renewed := func(before time.Duration, set func(*admin.Holder)) admin.Info {
		h := admin.Holder{Holder: natslock.Holder{Since: now, Expires: ago(before).Add(15 * time.Second)}, TTL: 15 * time.Second}
		set(&h)
		return held(h)
	}
	as := func(*admin.Holder) {}
	for name, c := range map[string]struct {
		limits checkCmd
		info   admin.Info
		beyond bool
	}{
		"held, at the limit":    {checkCmd{Held: time.Minute}, held(admin.Holder{Holder: natslock.Holder{Since: ago(time.Minute)}}), false},
		"held, beyond":          {checkCmd{Held: time.Minute}, held(admin.Holder{Holder: natslock.Holder{Since: ago(time.Minute + 1)}}), true},
		"idle":                  {checkCmd{Held: time.Minute}, held(admin.Holder{Holder: natslock.Holder{Since: ago(time.Hour)}, Idle: true}), false},
		"overdue":               {checkCmd{Held: time.Minute}, held(admin.Holder{Holder: natslock.Holder{Since: ago(time.Hour)}, Overdue: true}), false},
		"no limit for held":     {checkCmd{Waits: time.Minute}, held(admin.Holder{Holder: natslock.Holder{Since: ago(time.Hour)}}), false},
		"the second permit":     {checkCmd{Held: time.Minute}, admin.Info{Kind: admin.KindSemaphore, Permits: []admin.Holder{{Holder: natslock.Holder{Since: now}}, {Holder: natslock.Holder{Since: ago(time.Hour)}}}}, true},
		"a reader":              {checkCmd{Held: time.Minute}, admin.Info{Kind: admin.KindRW, Readers: []admin.Holder{{Holder: natslock.Holder{Since: ago(time.Hour)}}}}, true},
		"waits, at the limit":   {checkCmd{Waits: time.Minute}, admin.Info{Queue: []admin.Waiter{{Since: ago(time.Minute), Goroutines: 1}}}, false},
		"waits, beyond":         {checkCmd{Waits: time.Minute}, admin.Info{Queue: []admin.Waiter{{Since: ago(time.Minute + 1), Goroutines: 1}}}, true},
		"an overdue place":      {checkCmd{Waits: time.Minute}, admin.Info{Queue: []admin.Waiter{{Since: ago(time.Hour), Goroutines: 1, Overdue: true}}}, false},
		"late, at the limit":    {checkCmd{Late: 3 * time.Second}, renewed(8*time.Second, as), false},
		"late, beyond":          {checkCmd{Late: 3 * time.Second}, renewed(8*time.Second+1, as), true},
		"late, in time":         {checkCmd{Late: 1}, renewed(5*time.Second, as), false},
		"late and not renewed":  {checkCmd{Late: 1}, renewed(8*time.Second, func(h *admin.Holder) { h.Fixed = true }), false},
		"late and overdue":      {checkCmd{Late: 1}, renewed(8*time.Second, func(h *admin.Holder) { h.Overdue = true }), false},
		"late and broken":       {checkCmd{Late: 1}, renewed(8*time.Second, func(h *admin.Holder) { h.Broken = &admin.Broken{} }), false},
		"late and idle":         {checkCmd{Late: 1}, renewed(8*time.Second, func(h *admin.Holder) { h.Idle = true }), true},
		"late without an end":   {checkCmd{Late: 1}, held(admin.Holder{Holder: natslock.Holder{Since: now}}), false},
		"queue, at the limit":   {checkCmd{Queue: &three}, admin.Info{Queue: queue(3)}, false},
		"queue, beyond":         {checkCmd{Queue: &three}, admin.Info{Queue: queue(4)}, true},
		"goroutines of a place": {checkCmd{Queue: &three}, admin.Info{Queue: []admin.Waiter{{Since: now, Goroutines: 4}}}, true},
		"behind a holder":       {checkCmd{Queue: &three}, held(admin.Holder{Waiting: 4}), true},
		"held by design":        {checkCmd{Held: time.Minute}, held(admin.Holder{Holder: natslock.Holder{Since: ago(time.Hour)}, Purpose: "member"}), false},
		"waits by design":       {checkCmd{Waits: time.Minute, Queue: new(int)}, admin.Info{Queue: []admin.Waiter{{Since: ago(time.Hour), Goroutines: 1, Purpose: "election"}}}, false},
		"by design, all":        {checkCmd{Waits: time.Minute, All: true}, admin.Info{Queue: []admin.Waiter{{Since: ago(time.Hour), Goroutines: 1, Purpose: "election"}}}, true},
		"a worker of a group":   {checkCmd{Waits: time.Minute, Partitions: "g"}, admin.Info{Queue: []admin.Waiter{{Since: ago(time.Hour), Goroutines: 1, Purpose: "partition"}}}, true},
		"a member of a group":   {checkCmd{Held: time.Minute, Partitions: "g"}, held(admin.Holder{Holder: natslock.Holder{Since: ago(time.Hour)}, Purpose: "member"}), false},
		"queue limit of 0":      {checkCmd{Queue: new(int)}, admin.Info{Queue: queue(1)}, true},
		"no queue, limit of 0":  {checkCmd{Queue: new(int)}, held(admin.Holder{Holder: natslock.Holder{Since: now}}), false},
	} {
		t.Run(name, func(t *testing.T) {
			e, beyond := c.limits.judge(c.info, false, now)
			require.Equal(t, c.beyond, beyond, e.text)
		})
	}
}

// TestCheckWorst checks that check reports the limit that the lock exceeds by the most.
func TestCheckWorst(t *testing.T) {
	now := time.Now()
	info := admin.Info{Kind: admin.KindMutex, Name: "x", Holder: &admin.Holder{Holder: natslock.Holder{Owner: "web-1", Host: "a", Since: now.Add(-2 * time.Minute)}},
		Queue: []admin.Waiter{{Owner: "web-2", Host: "b", Since: now.Add(-30 * time.Second), Goroutines: 1}}}
	e, beyond := (&checkCmd{Held: time.Minute, Waits: 10 * time.Second}).judge(info, false, now)
	require.True(t, beyond)
	require.Equal(t, "mutex x has kept web-2 waiting for 30s (limit 10s)", e.text)
}
