package history

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/natslock/locks/internal/record"
)

// The model of a lock consists of its holders, the claim whose gate stands, and the highest
// tokens so far. A claim puts up a gate and takes it down again, and in between its holders
// enter and leave one after another. A writer of a reader-writer lock claims the gate before it
// enters. While the gate stands, a reader can join only by sharing the lease of a reader that
// is already in.
//
// A belief may expire, or end with an Unlock that was not confirmed. Its end is then a
// separate operation, and the lock may become free at any time between the end of the belief
// and the end of the record.
//
// An acquire without a grant may or may not have taken effect. Because no client believes that
// it did, the acquire changes nothing in the model. A refusal may still name the acquire's
// record, and then the stream must contain that record.

// state is comparable, as porcupine requires.
type state struct {
	gate      uint64 // the claim's first token; 0 if none
	writer    uint64 // 0 if none
	readers   string // tokens in order, eight bytes each
	exclusive uint64 // the highest token of any writer
	any       uint64 // the highest token
}

// step is the effect of an operation on the model.
type step struct {
	do     string // "claim", "take", "leave", "free" or "refused"
	shared bool
	token  uint64
	gate   uint64 // the first token of the token's claim
	label  string
}

func (s state) next(op step) (bool, state) {
	_, reads := without(s.readers, op.token)
	switch op.do {
	case "claim":
		if s.gate != 0 || op.token <= s.any {
			return false, s
		}
		s.gate, s.any, s.exclusive = op.token, op.token, op.token
	case "take":
		switch {
		case !op.shared:
			if s.gate != op.gate || s.writer != 0 || s.readers != "" || op.token != op.gate && op.token <= s.any {
				return false, s
			}
			s.writer, s.any, s.exclusive = op.token, max(s.any, op.token), max(s.exclusive, op.token)
		case reads || s.gate == 0 && op.token > s.exclusive:
			s.any = max(s.any, op.token)
			s.readers = with(s.readers, op.token)
		default:
			return false, s
		}
	case "leave":
		if op.shared {
			s.readers, _ = without(s.readers, op.token)
			return reads, s
		}
		if s.writer != op.token {
			return false, s
		}
		s.writer = 0
	case "free":
		if s.gate != op.gate || s.writer != 0 {
			return false, s
		}
		s.gate = 0
	case "refused": // refused by a claim that has the token
		return reads || s.gate == op.gate, s
	}
	return true, s
}

func tokensOf(readers string) []uint64 {
	var list []uint64
	for b := []byte(readers); len(b) > 0; b = b[8:] {
		list = append(list, binary.BigEndian.Uint64(b))
	}
	return list
}

func pack(list []uint64) string {
	var b []byte
	for _, t := range list {
		b = binary.BigEndian.AppendUint64(b, t)
	}
	return string(b)
}

func with(readers string, token uint64) string {
	list := append(tokensOf(readers), token)
	slices.Sort(list)
	return pack(list)
}

func without(readers string, token uint64) (string, bool) {
	list := tokensOf(readers)
	i := slices.Index(list, token)
	if i < 0 {
		return readers, false
	}
	return pack(slices.Delete(list, i, i+1)), true
}

// model returns the lease model, starting in state from.
func model(from state) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return from },
		Step: func(s, in, _ any) (bool, any) { return s.(state).next(in.(step)) },
		DescribeOperation: func(in, _ any) string {
			op := in.(step)
			mode := "writer"
			if op.shared {
				mode = "reader"
			}
			return fmt.Sprintf("%s %s %d", op.label, mode, op.token)
		},
		DescribeState: func(s any) string {
			st := s.(state)
			return fmt.Sprintf("gate %d, writer %d, readers %v, highest %d", st.gate, st.writer, tokensOf(st.readers), st.any)
		},
	}
}

// span is an operation of the model with the times that bound it. Edges at equal times are
// ordered by class: beliefs that expire come first, and ends of records come last.
type span struct {
	step
	client   string
	from, to edge
}

type edge struct {
	at    time.Duration
	class int
	seq   int64
}

func recorded(m Moment) edge { return edge{at: m.At, seq: m.Seq} }

func (e edge) compare(o edge) int {
	return cmp.Or(cmp.Compare(e.at, o.at), cmp.Compare(e.class, o.class), cmp.Compare(e.seq, o.seq))
}

// late is how long after its TTL a record may still keep others out. The record becomes
// overdue only after the slack, and clients may be late to notice because reads sometimes
// fail.
const late = time.Second

// linear checks the operations on a lock against the model. It splits them into stretches at
// the moments when no operation was in progress and the lock had no holder.
func (x *index) linear(lock string, o Options) (found []Violation) {
	if slices.ContainsFunc(x.holds[lock], func(h *Hold) bool { return h.Client == "" }) {
		return nil // only the grants were recorded
	}
	spans, found := x.spans(lock)
	clients := map[string]int{}
	for _, s := range spans {
		if _, ok := clients[s.client]; !ok {
			clients[s.client] = len(clients)
		}
	}
	// Ranks replace times because porcupine's intervals are closed.
	type end struct {
		edge
		span    int
		returns bool
	}
	var ends []end
	for i, s := range spans {
		ends = append(ends, end{s.from, i, false}, end{s.to, i, true})
	}
	slices.SortStableFunc(ends, func(a, b end) int { return a.edge.compare(b.edge) })
	var now state
	var stretch []porcupine.Operation
	at := map[int]int{} // from span to position in the stretch
	running, in := 0, 0
	for rank, e := range ends {
		s := spans[e.span]
		if !e.returns {
			at[e.span] = len(stretch)
			stretch = append(stretch, porcupine.Operation{ClientId: clients[s.client], Input: s.step, Call: int64(rank), Return: int64(len(ends))})
			running++
			continue
		}
		stretch[at[e.span]].Return = int64(rank)
		running--
		switch {
		case s.do == "claim", s.do == "take" && s.shared:
			in++
		case s.do == "free", s.do == "leave" && s.shared:
			in--
		}
		if running > 0 || in > 0 {
			continue
		}
		found = append(found, decide(lock, now, stretch, s.to.at, o)...)
		for _, op := range stretch {
			if st := op.Input.(step); st.do == "take" {
				now.any = max(now.any, st.token)
				if !st.shared {
					now.exclusive = max(now.exclusive, st.token)
				}
			}
		}
		stretch, at = nil, map[int]int{}
	}
	return append(found, decide(lock, now, stretch, x.h.Ended, o)...)
}

// decide asks porcupine to judge a stretch.
func decide(lock string, from state, ops []porcupine.Operation, at time.Duration, o Options) []Violation {
	if len(ops) == 0 {
		return nil
	}
	patience := cmp.Or(o.Patience, time.Minute)
	m := model(from)
	result := porcupine.CheckOperationsTimeout(m, ops, patience)
	if result == porcupine.Ok {
		return nil
	}
	v := Violation{Check: 4, Lock: lock, At: at, What: fmt.Sprintf("the %d operations until then are not linearizable", len(ops))}
	if result == porcupine.Unknown {
		v.What = fmt.Sprintf("the %d operations until then could not be judged within %v", len(ops), patience)
	}
	v.picture = func(path string) error {
		_, info := porcupine.CheckOperationsVerbose(m, ops, patience)
		return porcupine.VisualizePath(m, info, path)
	}
	return []Violation{v}
}

// readersRecord reports whether an acquire was refused because of a reader's record that
// existed during the call.
func (x *index) readersRecord(lock string, op *Op) bool {
	for _, h := range x.holds[lock] {
		if !h.Shared || h.Token != op.Token || len(x.claims[h.claim()]) == 0 {
			continue
		}
		for _, v := range x.busy(x.claims[h.claim()][0].Key) {
			if v.from <= op.Return.At && op.Call.At <= v.until {
				return true
			}
		}
	}
	return false
}

// spans returns the operations on a lock in terms of the model.
func (x *index) spans(lock string) (list []span, found []Violation) {
	gates := x.gates(lock)
	frees := map[uint64]span{} // the end of each gate
	known := map[uint64]bool{} // tokens in the model
	last := map[string]*Hold{} // each claim's last holder to leave
	for _, h := range x.holds[lock] {
		if before := last[h.claim()]; before == nil || recorded(before.Unlocked).compare(recorded(h.Unlocked)) < 0 {
			last[h.claim()] = h
		}
	}
	for _, h := range x.holds[lock] {
		ex, victim := x.victim[h.claim()]
		if victim && ex.at <= h.From.At {
			continue // its record was removed before the client knew about it
		}
		known[h.Token] = true
		gate := h.Token
		if !h.Shared {
			gate = cmp.Or(gates.of[h.claim()], h.Token)
		}
		if gate == h.Token && !h.Shared {
			from := recorded(h.Asked)
			if records := x.claims[h.claim()]; len(records) > 0 && records[0].At < h.Asked.At {
				from = edge{at: records[0].At, class: -1} // another goroutine of its cohort had asked earlier
			}
			list = append(list, span{step{"claim", false, h.Token, gate, "claims"}, h.Client, from, recorded(h.From)})
		}
		list = append(list, span{step{"take", h.Shared, h.Token, gate, "takes"}, h.Client, recorded(h.Asked), recorded(h.From)})
		leave := span{step{"leave", h.Shared, h.Token, gate, "leaves"}, h.Client, recorded(h.end()), recorded(h.Unlocked)}
		belief := h.end()
		out := victim && ex.at <= belief.At
		switch {
		case out:
			leave.label = "is put out"
			leave.from, leave.to = edge{at: ex.at, class: -1}, edge{at: ex.at, class: 1}
		case !h.Released || belief != h.Unlock:
			leave.label = "expires"
			if belief != h.Unlock {
				leave.from.class = -1
			}
			leave.to = edge{at: max(x.gone(h), belief.At), class: 1}
		}
		if leave.from.compare(recorded(h.From)) <= 0 { // the belief had ended by the time it began
			leave.from = recorded(h.From)
			leave.to = edge{at: max(leave.to.at, leave.from.at), class: 1}
		}
		gone := edge{at: x.gone(h), class: 1}
		stays := !out && x.h.Tapped && !x.h.Lossy && leave.to.compare(gone) < 0
		if h.Shared {
			// The client may hold on to its last reader's lease after that reader leaves. Until
			// the lease's record is removed, it keeps others out.
			if stays && last[h.claim()] == h {
				leave.to = gone
			}
			list = append(list, leave)
			continue
		}
		list = append(list, leave)
		free := leave
		free.do, free.label = "free", "frees"
		if stays { // waiters in the cohort may be granted the lock and give it up again
			free.to = gone
		}
		if before, ok := frees[gate]; !ok || before.from.compare(free.from) < 0 {
			frees[gate] = free
		}
	}
	for _, free := range frees {
		list = append(list, free)
	}
	l := x.locks[lock]
	for _, op := range x.ops[lock] {
		gate := gates.of[gates.claims[op.Token]]
		switch {
		case op.Outcome != Refused || op.Token == 0 || !op.acquires() || x.h.Lossy:
		case !known[op.Token] && x.otherAttempt(lock, op.Token, gate, frees[gate]):
		case x.readersRecord(lock, op): // a record keeps others out even while it lingers without a holder
		case known[op.Token] || frees[gate].do != "":
			gate = cmp.Or(gate, op.Token)
			list = append(list, span{step{"refused", op.Shared, op.Token, gate, "is refused by"}, op.Client, recorded(op.Call), recorded(op.Return)})
		case x.h.Tapped && (l == nil || !l.written[op.Token]):
			found = append(found, Violation{Check: 4, Lock: lock, At: op.Call.At, What: fmt.Sprintf(
				"%s was refused by a holder with token %d, which never existed", op.Client, op.Token)})
		}
		// Otherwise the refusal names the victim of an exception, or an attempt that was not
		// granted.
	}
	return list, found
}

// otherAttempt reports whether a token belongs to another attempt of a granted claim. A later
// attempt arrived after the claim had been released. An earlier attempt was never answered, and
// its record had been removed by the time of the grant. While the record of either kind of
// attempt exists, it keeps others out, and a break of that record names the attempt's token.
func (x *index) otherAttempt(lock string, token, granted uint64, freed span) bool {
	for _, e := range x.keys[lock] {
		if !e.Deleted && e.Token == 0 && record.TokenOrTicket(e.Key, e.Revision) == token {
			return freed.do != "" && (e.At > freed.from.at || token < granted)
		}
	}
	return false
}

// gates holds a lock's claims.
type gates struct {
	of     map[string]uint64 // the first token that each claim granted
	claims map[uint64]string // the claim of each token
}

// gates finds a lock's claims and their tokens. A renewal carries the token of the holder at
// the time of the write. A record without a token may come from an attempt that arrived late.
func (x *index) gates(lock string) gates {
	g := gates{map[string]uint64{}, map[uint64]string{}}
	for _, e := range x.keys[lock] {
		if e.ID != "" && e.Token != 0 && !e.Deleted {
			g.claims[e.Token] = e.ID
		}
	}
	for _, h := range x.holds[lock] {
		if h.Shared {
			continue
		}
		g.claims[h.Token] = h.claim()
		ex, victim := x.victim[h.claim()]
		if first, ok := g.of[h.claim()]; !(victim && ex.at <= h.From.At) && (!ok || h.Token < first) {
			g.of[h.claim()] = h.Token
		}
	}
	return g
}

// gone returns the time by which a holder's record had certainly been removed.
func (x *index) gone(h *Hold) time.Duration {
	if !x.h.Tapped || x.h.Lossy {
		return x.h.Ended
	}
	at := time.Duration(0)
	for _, e := range x.claims[h.claim()] {
		at = e.ends() + late
		if next, ok := x.after(e.Key, e.Revision); ok {
			at = min(at, next.At)
		}
	}
	return at
}
