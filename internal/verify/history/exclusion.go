package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/natslock/locks/internal/record"
)

// overlaps finds conflicting holders of a lock whose beliefs overlap. holds must be in the
// order of their grants.
func (x *index) overlaps(holds []*Hold) (found []Violation) {
	var in []*Hold // the beliefs that have not ended yet
	for _, b := range holds {
		kept := in[:0]
		for _, a := range in {
			if a.end().compare(b.From) <= 0 {
				continue
			}
			kept = append(kept, a)
			if a.conflicts(b) && b.From.compare(b.end()) < 0 && !x.excused(a, b) {
				found = append(found, Violation{Check: 1, Lock: b.Lock, At: b.From.At, What: fmt.Sprintf(
					"%s holds token %d from %v to %v while %s holds %d until %v",
					b.Client, b.Token, b.From.At, b.end().At, a.Client, a.Token, a.end().At)})
			}
		}
		in = append(kept, b)
	}
	return found
}

// backed finds holders that believed in a lock for longer than the server was certain to keep
// its record. It judges each confirmation, and the end of the belief, by the stream as it was
// at that time.
func (x *index) backed(h *Hold) (found []Violation) {
	if x.h.Lossy || h.Client == "" {
		return nil
	}
	judge := func(at, until time.Duration) {
		if len(found) > 0 {
			return
		}
		var record Entry
		for _, e := range x.claims[h.claim()] {
			if e.At <= at {
				record = e
			}
		}
		switch {
		case record.Revision == 0:
			found = append(found, Violation{Check: 1, Lock: h.Lock, At: at, What: fmt.Sprintf("%s holds token %d without a record", h.Client, h.Token)})
		case until > record.ends():
			found = append(found, Violation{Check: 1, Lock: h.Lock, At: at, What: fmt.Sprintf(
				"at %v %s believes it holds token %d until %v, but its record %d ends at %v", at, h.Client, h.Token, until, record.Revision, record.ends())})
		}
	}
	for _, c := range h.Confirmed {
		judge(c.At, c.Until)
	}
	if end := h.end().At; end > h.From.At {
		judge(end, end)
	}
	return found
}

// alone finds holders whose lock was released by another holder's Unlock.
func alone(holds []*Hold) (found []Violation) {
	for _, h := range holds {
		if h.Client != "" && h.Left && (h.Unlock.zero() || h.Ended.compare(h.Unlock) < 0) {
			found = append(found, Violation{Check: 1, Lock: h.Lock, At: h.Ended.At, What: fmt.Sprintf(
				"token %d of %s was released, but not by its own handle", h.Token, h.Client)})
		}
	}
	return found
}

// numbered finds a token that does not rest on any record that its claim had before the grant,
// or that rests on a record that was never acknowledged to the client.
func (x *index) numbered(h *Hold) (found []Violation) {
	if x.h.Lossy || h.Client == "" || len(x.claims[h.claim()]) == 0 { // left to [index.backed]
		return nil
	}
	why := "belongs to no record of its claim"
	for _, e := range x.claims[h.claim()] {
		if e.Revision == record.TokenRevision(h.Token) && e.Status == statusHeld && e.At <= h.From.At {
			why = ""
		}
	}
	if why == "" && h.Unknown {
		why = "belongs to a record that was not acknowledged"
	}
	if why != "" {
		found = append(found, Violation{Check: 2, Lock: h.Lock, At: h.From.At, What: fmt.Sprintf(
			"token %d of %s (revision %d, grant %d) %s", h.Token, h.Client, record.TokenRevision(h.Token), h.Token%record.GrantsPerRevision, why)})
	}
	return found
}

// joins finds new readers that joined while a gate stood, going by the stream's revisions. An
// expiry leaves no entry, so a gate is known to stand only until one TTL after its last write.
func (x *index) joins() (found []Violation) {
	type standing struct {
		Entry
		suspect []Violation // in a lossy stream: joins seen since the gate's last write
	}
	gates := map[string]*standing{}
	known := map[string]bool{}
	for _, e := range x.h.Stream {
		lock, role := lockOf(e.Key)
		switch {
		case e.Remade:
			clear(gates)
		case role == "rw":
			if g := gates[lock]; g != nil && g.ID == e.ID {
				found = append(found, g.suspect...)
			}
			gates[lock] = &standing{Entry: e}
		case role == "read" && !e.Deleted && !known[e.Key]:
			known[e.Key] = true
			g := gates[lock]
			if g == nil || g.Deleted || e.At >= g.ends() {
				continue
			}
			if x.h.Lossy && e.Renewal > 0 && e.Token < cmp.Or(g.Token, record.Token(g.Revision, 0)) {
				continue // the join was missed, and came before the gate
			}
			v := Violation{Check: 1, Lock: lock, At: e.At, What: fmt.Sprintf(
				"%s joined at %d behind the gate of %d", e.Key, e.Revision, g.Revision)}
			if x.h.Lossy {
				g.suspect = append(g.suspect, v)
			} else {
				found = append(found, v)
			}
		}
	}
	return found
}

// writersOverReaders finds writers that were granted the lock while an earlier reader's record
// was alive according to the stream: written, not deleted, and within its TTL.
func (x *index) writersOverReaders(lock string) (found []Violation) {
	l := x.locks[lock]
	if l == nil {
		return nil
	}
	holds := x.holds[lock]
	for _, key := range l.readers {
		events := x.keys[key]
		first, final := events[0], events[len(events)-1].ends()
		i, _ := slices.BinarySearchFunc(holds, first.At, func(h *Hold, at time.Duration) int { return cmp.Compare(h.From.At, at) })
		for _, w := range holds[i:] {
			if w.From.At >= final {
				break
			}
			if w.Shared || record.TokenRevision(w.Token) < first.Revision || w.Until < w.From.At {
				continue
			}
			e, laterKnown, _ := x.last(key, w.From.At)
			if !e.Deleted && w.From.At < e.ends() && (laterKnown || !x.h.Lossy) {
				found = append(found, Violation{Check: 1, Lock: lock, At: w.From.At, What: fmt.Sprintf(
					"writer %d of %s was in while %s was alive at %d", w.Token, w.Client, key, e.Revision)})
			}
		}
	}
	return found
}

// tokens finds grants whose token is not above the tokens of all earlier holders that conflict
// with the grant.
func (x *index) tokens(holds []*Hold) (found []Violation) {
	var exclusive, all *Hold // the holders with the highest tokens so far
	for _, h := range holds {
		if h.Until < h.From.At {
			continue // its validity ended before the holder learned of the grant
		}
		above := exclusive
		if !h.Shared {
			above = all
		}
		if above != nil && h.Token <= above.Token && !x.excused(h, above) {
			found = append(found, Violation{Check: 2, Lock: h.Lock, At: h.From.At, What: fmt.Sprintf(
				"%s was granted token %d after %s was granted %d", h.Client, h.Token, above.Client, above.Token)})
		}
		if all == nil || h.Token > all.Token {
			all = h
		}
		if !h.Shared && (exclusive == nil || h.Token > exclusive.Token) {
			exclusive = h
		}
	}
	return found
}

// resource finds uses that a resource accepted from a holder after it had accepted one from a
// later holder, and uses that it refused during the holder's validity.
func (x *index) resource(lock string) (found []Violation) {
	order := map[string]int{} // the order of grants, by holder
	holds := map[string]*Hold{}
	for i, h := range x.holds[lock] {
		if _, ok := order[h.ID]; !ok {
			order[h.ID], holds[h.ID] = i, h
		}
	}
	var exclusive, any *Hold // the latest accepted holders, in the order of grants
	for _, op := range x.ops[lock] {
		h := holds[op.ID]
		if op.Do != Use || h == nil {
			continue
		}
		switch op.Outcome {
		case OK:
			later := exclusive
			if !h.Shared {
				later = any
			}
			if later != nil && order[later.ID] > order[h.ID] {
				found = append(found, Violation{Check: 3, Lock: lock, At: op.Call.At, What: fmt.Sprintf(
					"the resource accepted token %d of %s after it had accepted %d of %s, which was granted later", h.Token, h.Client, later.Token, later.Client)})
			}
			if any == nil || order[h.ID] > order[any.ID] {
				any = h
			}
			if !h.Shared && (exclusive == nil || order[h.ID] > order[exclusive.ID]) {
				exclusive = h
			}
		case Refused:
			if _, ok := x.victim[h.claim()]; !ok && op.Return.compare(h.end()) < 0 {
				found = append(found, Violation{Check: 3, Lock: lock, At: op.Call.At, What: fmt.Sprintf(
					"the resource refused token %d of %s inside its validity", h.Token, h.Client)})
			}
		}
	}
	return found
}
