package show

import (
	"strconv"
	"strings"
	"time"

	"github.com/natslock/locks/partition"
)

// groupJSON is a group in the output of --json. Fields may be added but never renamed. The doc
// tags appear in the generated reference.
type groupJSON struct {
	Group      string          `json:"group" doc:"its name"`
	Count      int             `json:"count" doc:"number of partitions; without members, at least as many as its owners show"`
	Unowned    int             `json:"unowned" doc:"number of partitions without an owner"`
	InMotion   int             `json:"in_motion" doc:"number of partitions that have an owner but should have another"`
	Members    []memberJSON    `json:"members" doc:"the workers, first come first"`
	Refused    []memberJSON    `json:"refused" doc:"workers configured for a different number of partitions, about to leave"`
	Partitions []partitionJSON `json:"partitions" doc:"all partitions, by number"`
}

type memberJSON struct {
	ID     string `json:"id" doc:"the worker's id"`
	Weight int    `json:"weight" doc:"number of shares"`
	Owned  int    `json:"owned" doc:"number of partitions owned"`
	Quota  int    `json:"quota" doc:"number of partitions it should own"`
	Token  uint64 `json:"token" doc:"fencing token of the membership; below 2^53 until 2060"`
	client
	Since time.Time         `json:"since" doc:"when it joined, by its own clock"`
	Meta  map[string]string `json:"meta" doc:"the worker's metadata"`
}

type partitionJSON struct {
	Number   int         `json:"number" doc:"from 0"`
	Member   string      `json:"member" doc:"the id of the worker that owns it, even if leaving; empty: none, or a holder that is not a worker"`
	Holder   *holderJSON `json:"holder" doc:"the holder of its lock; null: no owner"`
	Planned  string      `json:"planned" doc:"the id of the member that should own it; empty: no members"`
	Former   bool        `json:"former" doc:"its owner is an earlier process with a member's id"`
	InMotion bool        `json:"in_motion" doc:"it has an owner but should have another"`
	Waiting  int         `json:"waiting" doc:"number of workers that wait for its lock"`
	Unowned  *time.Time  `json:"unowned_since" doc:"with --watch: since when lockctl has seen no owner, by its own clock; null: it has one, or unknown"`
}

// GroupShapes returns the JSON objects that describe a group, in the order of the reference.
func GroupShapes() []Shape {
	return []Shape{{"A group, of partitions", groupJSON{}}, {"A member of a group", memberJSON{}}, {"A partition", partitionJSON{}}}
}

// Group is the state of a group of workers, plus what the calling command has itself observed.
type Group struct {
	partition.State
	Unowned map[int]time.Time // when partitions were first seen without an owner; nil if unknown
}

// Moves reports whether a partition has an owner other than the planned one.
func Moves(p partition.Placement) bool {
	return p.Holder != nil && p.Planned != "" && (p.Former || p.Planned != p.Member)
}

// Tally returns how many partitions have no owner and how many are moving to another owner.
func Tally(g partition.State) (unowned, moving int) {
	for _, p := range g.Partitions {
		switch {
		case p.Holder == nil:
			unowned++
		case Moves(p):
			moving++
		}
	}
	return unowned, moving
}

// Shares returns the partitions that each worker owns and the number that it should own, both
// keyed by worker ID.
func Shares(g partition.State) (owned map[string][]int, quota map[string]int) {
	owned, quota = make(map[string][]int), make(map[string]int)
	for _, p := range g.Partitions {
		if p.Member != "" && !p.Former {
			owned[p.Member] = append(owned[p.Member], p.Number)
		}
		if p.Planned != "" {
			quota[p.Planned]++
		}
	}
	return owned, quota
}

// Object returns the group as it is encoded for --json.
func (g Group) Object() any {
	out := groupJSON{Group: Name(g.Group), Count: g.Count, Members: []memberJSON{}, Refused: []memberJSON{}, Partitions: []partitionJSON{}}
	out.Unowned, out.InMotion = Tally(g.State)
	owned, quota := Shares(g.State)
	member := func(m partition.Member) memberJSON {
		return memberJSON{ID: m.ID, Weight: m.Weight, Owned: len(owned[m.ID]), Quota: quota[m.ID], Token: m.Token, client: client{m.Owner, m.Host, m.PID}, Since: m.Since.UTC(), Meta: m.Meta}
	}
	for _, m := range g.Members {
		out.Members = append(out.Members, member(m))
	}
	for _, m := range g.Refused {
		out.Refused = append(out.Refused, member(m))
	}
	for _, p := range g.Partitions {
		o := partitionJSON{Number: p.Number, Member: p.Member, Planned: p.Planned, Former: p.Former, InMotion: Moves(p), Waiting: p.Waiting}
		if p.Holder != nil {
			h := holderToJSON(*p.Holder)
			o.Holder = &h
		}
		if at, ok := g.Unowned[p.Number]; ok {
			at = at.UTC()
			o.Unowned = &at
		}
		out.Partitions = append(out.Partitions, o)
	}
	return out
}

// Ranges formats increasing numbers as ranges, such as "0-3,7".
func Ranges(numbers []int) string {
	var b strings.Builder
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] == numbers[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(numbers[i]))
		if j > i {
			b.WriteString("-" + strconv.Itoa(numbers[j]))
		}
		i = j + 1
	}
	return b.String()
}
