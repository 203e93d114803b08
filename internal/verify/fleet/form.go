package fleet

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/natslock/locks/internal/clock"
	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/explore"
)

// Model is the exploration of a scope.
func Model(s Scope) explore.Model[World] {
	return explore.Model[World]{
		Name: s.Name, Init: func() *World { return New(s) }, Moves: Moves, Take: Take, Goal: Goal, Canon: canon,
		Broken: func(w *World) string { return w.Wrong }, Now: func(w *World) clock.Instant { return w.Now },
		Say: Say, Show: Show, Form: form(s),
	}
}

// form is the canonical form of a world: which numbers are revisions, and what is not looked at.
func form(s Scope) *explore.Form {
	f := &explore.Form{Wall: wall}
	f.Horizon(max(s.TTL, s.Place, 5*time.Second) + time.Second)
	f.Revision(server{}, "Seq")
	f.Revision(stored{}, "Revision", "Token", "InUse")
	f.Revision(message{}, "Expect")
	f.Revision(kept{}, "Token", "ReadAt")
	f.Revision(bid{}, "Expect", "Token")
	f.Revision(client{}, "Tombstone")
	f.Ignore(client{}, "Highest", "the server never goes back")
	f.Revision(World{}, "Granted", "Broken")
	f.Revision(call{}, "Asked")
	f.Unordered(World{}, "Net")
	f.Ignore(World{}, "Scope", "it never changes")
	f.Ignore(World{}, "Grants", "it only counts")
	if s.travels() {
		f.Revision(World{}, "Top")
	} else {
		f.Ignore(World{}, "Top", "the order of tokens is the simulator's")
	}
	f.Ignore(World{}, "TopRead", "the order of tokens is the simulator's")
	f.HorizonOf(bid{}, 1, "At")
	f.HorizonOf(client{}, time.Second, "LeftAt")
	f.HorizonOf(client{}, record.Bypass, "UnqueuedAt")
	f.HorizonOf(removal{}, 1, "At")
	f.HorizonOf(drain{}, 1, "At")
	f.HorizonOf(run{}, 1, "Since")
	f.HorizonOf(recall{}, 1, "At")
	f.Revision(recall{}, "Revision")
	f.HorizonOf(World{}, 1, "Rests")
	ofCore(f, s)
	return f
}

// canon clears what no later move reads.
func canon(w *World) {
	for _, c := range w.Clients {
		if c.Crashed {
			continue
		}
		for _, g := range c.Calls {
			if w.Failed || !w.Scope.Fifo || g.Entered {
				g.Asked, g.Known, g.Blind = 0, nil, false
			}
			if g.Entered {
				g.Drain = nil
			}
		}
		for _, k := range c.Kept {
			k.canon(w)
		}
		c.canonOthers(w)
		for _, r := range c.Runs {
			if f := r.Successor; f != nil && f.Proven {
				f.Pred.Time = time.Time{}
			}
			if r.At != atStand {
				r.Waiter.Named, r.Waiter.Vacant = false, 0
			}
			if r.Place == nil {
				r.Waiter = core.Waiter{}
			}
			if r.At != atBid {
				r.Then = 0
			}
			if !w.Scope.Untimed || r.First == nil && r.Successor == nil {
				r.Since = 0
			}
			if r.R.Leased() {
				r.see(w)
			}
			if r.R.Over {
				r.R.Lease = core.Lease{Revision: 1}
				r.R.MayIdle, r.Evicted, r.Tries, r.Queues = false, 0, 0, false
			}
			if r.Bid.Cur == nil && r.At != atBid && r.At != atFirst {
				b := bid{Joins: r.Bid.Joins}
				b.B.Guarded, b.B.Slot = r.Bid.B.Guarded, r.Bid.B.Slot
				r.Bid = b
			}
		}
	}
	w.forgetNumbers()
	live := func(revision uint64) bool {
		return slices.ContainsFunc(w.Server.Records, func(r stored) bool { return r.Revision == revision }) ||
			slices.ContainsFunc(w.Net, func(m message) bool { return m.Answer.Revision == revision || m.Answer.Last == revision })
	}
	w.Broken = slices.DeleteFunc(w.Broken, func(revision uint64) bool { return !live(revision) })
}

// holds says whether there is a record of an id, or a write of one.
func (w *World) holds(id string) bool {
	return slices.ContainsFunc(w.Server.Records, func(r stored) bool { return r.ID == id && !r.Deleted }) ||
		slices.ContainsFunc(w.Net, func(m message) bool { return m.What.ID == id })
}

// forgetNumbers forgets the numbers of attempts and renewals that nobody reads.
func (w *World) forgetNumbers() {
	claimed := func(id string) bool {
		return slices.ContainsFunc(w.Clients, func(c *client) bool {
			return slices.ContainsFunc(c.Claims, func(cl *claim) bool { return cl.C.ID == id })
		})
	}
	read := func(id string, revision uint64) bool {
		return slices.ContainsFunc(w.Clients, func(c *client) bool {
			return slices.ContainsFunc(c.Kept, func(k *kept) bool { return k.Body.ID == id && k.State == core.StateHeld && revision > k.Last })
		})
	}
	for _, s := range []*server{&w.Server, w.Old} {
		for i := 0; s != nil && i < len(s.Records); i++ {
			r := &s.Records[i]
			if r.Deleted {
				continue
			}
			if r.Token == 0 {
				r.Token = w.tokenOf(r)
			}
			attempt := claimed(r.ID)
			if !attempt {
				r.Attempt = 0
			}
			if (r.Renewal > 0 || !attempt) && !read(r.ID, r.Revision) {
				r.Renewal = 1
			}
		}
	}
	for i := range w.Net {
		if m := &w.Net[i]; m.What.Renewal > 1 && !read(m.What.ID, never64) {
			m.What.Renewal, m.N = 1, 1
		}
	}
}

const never64 = 1 << 63

// canon forgets how often a record has been renewed, and of a record that has ended what it was.
func (k *kept) canon(w *World) {
	if w.Scope.Kind != record.RW || !w.Scope.Several {
		k.LastSent, k.Confirmed = 0, 0
	}
	n, need := field[uint64](&k.Kept, "n"), field[uint64](&k.Kept, "need")
	if k.State != core.StateHeld {
		ended := core.Kept{State: k.State, Cause: k.Cause, Why: k.Why, Last: k.Last, Terms: clock.Terms{TTL: k.Terms.TTL}}
		ended.Body.ID, ended.Body.Status, ended.Valid.End = k.Body.ID, k.Body.Status, k.Valid.End
		if k.Cause == core.EndHandedOff && k.Removal != nil {
			ended.Granted.TTL, ended.Body.Token = k.Granted.TTL, k.Body.Token
		}
		k.Kept, k.U, k.Confirmed, k.ReadAt = ended, core.Use{}, 0, 0
		return
	}
	k.U.Grants = min(k.U.Grants, 1)
	k.Body.Grants, k.Body.Waits, k.Body.Since, k.Body.Waited = 0, 0, 0, 0 // they are only shown
	if !k.Resolving {
		k.ReadAt = 0
	}
	// Of the numbers of its renewals only the order matters, and that of the one that is needed where it is to be sent yet.
	next := *need > *n
	*n = max(*n, 1)
	sent := *field[[]core.Renewal](&k.Kept, "sent")
	if !next && (len(sent) == 0 || *need <= sent[0].N) {
		*need = 0
	}
	numbers := []*uint64{n, &k.Confirmed}
	for i := range sent {
		numbers = append(numbers, &sent[i].N)
	}
	for i := range w.Net {
		if m := &w.Net[i]; m.What.ID == k.Body.ID && m.From == fromRenewal {
			numbers = append(numbers, &m.What.Renewal, &m.N)
		}
	}
	for _, s := range []*server{&w.Server, w.Old} {
		for i := 0; s != nil && i < len(s.Records); i++ {
			if r := &s.Records[i]; r.ID == k.Body.ID && r.Revision > k.Last && !r.Deleted {
				numbers = append(numbers, &r.Renewal)
			}
		}
	}
	if *need != 0 && !next {
		numbers = append(numbers, need)
	}
	var values []uint64
	for _, n := range numbers {
		if *n != 0 {
			values = append(values, *n)
		}
	}
	slices.Sort(values)
	values = slices.Compact(values)
	for _, n := range numbers {
		if *n != 0 {
			i, _ := slices.BinarySearch(values, *n)
			*n = uint64(i) + 1
		}
	}
	if next {
		*need = *n + 1
	}
}

// canonOthers forgets how many places have become known before the writes that are on their way, since when the
// subscriptions are proven if each list is younger, and places that are gone where no older notification can show them.
func (c *client) canonOthers(w *World) {
	if c.Line == nil || c.Line.Others == nil {
		return
	}
	o := c.Line.Others
	count := field[uint32](o, "count")
	least := *count
	var news []*uint32
	for _, r := range c.Line.Runs {
		n := field[uint32](r, "writing", "news")
		if *field[clock.Instant](r, "writing", "begun") == 0 {
			*n = 0
			continue
		}
		least = min(least, *n)
		news = append(news, n)
	}
	if len(news) == 0 {
		least = *count
	}
	for _, n := range append(news, count) {
		*n -= least
	}
	proven, listed := field[clock.Instant](o, "proven"), *field[clock.Instant](o, "listedAt")
	if w.Scope.Kind == record.RW {
		listed = min(listed, *field[clock.Instant](o, "gate", "listedAt"))
	}
	if *proven != 0 && listed > *proven {
		*proven = listed
	}
	if f := w.Scope.Faults; w.Scope.Prompt && !w.Scope.Slow && f.Late == 0 {
		gone := reflect.ValueOf(o).Elem().FieldByName("gone")
		reflect.NewAt(gone.Type(), gone.Addr().UnsafePointer()).Elem().SetZero()
		*field[clock.Instant](o, "swept") = 0
	}
}

// field is a field that a package does not export.
func field[F, T any](of *T, path ...string) *F {
	f := reflect.ValueOf(of).Elem()
	for _, name := range path {
		f = f.FieldByName(name)
	}
	if f.Type() != reflect.TypeFor[F]() {
		panic(fmt.Sprintf("fleet: the field %v has another type", path))
	}
	return (*F)(f.Addr().UnsafePointer())
}

// Say is a move in words.
func Say(w *World, m explore.Move) string {
	a := int(m.A)
	if m.Kind <= mvDeposed {
		return fmt.Sprintf("%s: %s", verbs[m.Kind], w.Net[a].say(w))
	}
	name := ""
	if a < len(w.Clients) {
		name = w.Clients[a].ID
	}
	switch m.Kind {
	case mvUnlock, mvGiveUp, mvExtend, mvHandOff:
		return fmt.Sprintf("%s: goroutine %d %s", name, m.B, verbs[m.Kind])
	case mvPass:
		return fmt.Sprintf("%v pass", time.Duration(m.A)*time.Millisecond)
	case mvAdopt:
		return fmt.Sprintf("%s adopts the lock of %s", w.Clients[m.B].ID, w.Server.Records[a].ID)
	case mvAsk:
		return fmt.Sprintf("%s asks (%d)", name, m.B)
	case mvBreak, mvForget:
		r := w.Server.Records[a]
		return fmt.Sprintf("%s %s of %s at %d", verbs[m.Kind], r.Key, r.ID, r.Revision)
	}
	return fmt.Sprintf("%s %s", name, verbs[m.Kind])
}

var verbs = [...]string{
	mvDeliver: "arrives", mvLose: "lost", mvExpire: "lost", mvUnanswered: "arrives, and the answer is lost", mvLateAnswer: "arrives, and the answer is late",
	mvLate: "is late", mvMissed: "arrives, and a notification is lost", mvRepeat: "is repeated", mvDeposed: "a deposed leader answers",
	mvAsk: "asks", mvUnlock: "unlocks", mvGiveUp: "gives up", mvPass: "pass", mvBreak: "an operator breaks", mvCrash: "crashes",
	mvPause: "stands still", mvResume: "goes on", mvForget: "the server forgets the TTL of", mvLag: "reads from a replica that lags",
	mvCatchUp: "reads from the leader", mvCut: "the leader is deposed, and does not know it",
	mvExtend: "extends", mvHandOff: "hands the lock over", mvAdopt: "adopts",
}

func (m *message) say(w *World) string {
	what := "the claim"
	switch {
	case m.From == fromRenewal:
		what = "the renewal"
	case m.What.Deleted:
		what = "the deletion"
	}
	name := fmt.Sprintf("%s %s of %s", what, m.What.Key, m.What.ID)
	switch m.To {
	case toServer:
		return fmt.Sprintf("%s, number %d, expecting %d", name, m.N, m.Expect)
	case toClient:
		return fmt.Sprintf("the answer to %s, number %d: %+v", name, m.N, m.Answer)
	}
	return fmt.Sprintf("for %s, the notification of %s at %d", w.Clients[m.Client].ID, m.What.Key, m.What.Revision)
}

// Show is what the server has, and who is inside.
func Show(w *World) string {
	var b strings.Builder
	for _, r := range w.Server.Records {
		fmt.Fprintf(&b, "%s@%d:%s", r.Key, r.Revision, pick(r.Deleted, "-", r.ID))
		if !r.Deleted {
			fmt.Fprintf(&b, "/%d", r.Status)
		}
		b.WriteByte(' ')
	}
	for _, c := range w.Clients {
		for i, g := range c.Calls {
			if g.Entered {
				fmt.Fprintf(&b, "[%s.%d in %d, until %v] ", c.ID, i, g.Lease.Token, g.Lease.Valid.End.Sub(w.Now))
			}
		}
	}
	if w.Wrong != "" {
		b.WriteString("WRONG: " + w.Wrong)
	}
	return b.String()
}
