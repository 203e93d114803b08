package fleet

import (
	"reflect"
	"time"

	"github.com/natslock/locks/internal/core"
	"github.com/natslock/locks/internal/kvstore"
	"github.com/natslock/locks/internal/record"
	"github.com/natslock/locks/internal/verify/explore"
)

// inside is a value of the type that a field of a struct leads to, which its package does not export.
func inside(of any, fields ...string) any {
	t := reflect.TypeOf(of)
	for _, name := range fields {
		f, ok := t.FieldByName(name)
		if !ok {
			panic("fleet: " + t.String() + " has no field " + name)
		}
		t = f.Type
		for t.Kind() != reflect.Struct {
			t = t.Elem()
		}
	}
	return reflect.Zero(t).Interface()
}

// ofCore declares what the numbers in the core are, and for how long its instants matter.
func ofCore(f *explore.Form, s Scope) {
	f.Revision(core.Answer{}, "Revision", "Last")
	f.Revision(core.Attempt{}, "Expect")
	f.Revision(core.Run{}, "Ticket")
	f.Revision(core.Lease{}, "Revision")
	f.Revision(core.Waiter{}, "Ticket", "Vacant")
	f.Revision(core.Removal{}, "Revision")
	f.Ignore(core.Removal{}, "attempt", "only a Taking reads it")
	f.Revision(core.KeyAt{}, "Expect")
	f.Revision(core.Drain{}, "notified")
	f.Revision(core.DrainStep{}, "Revision")
	f.Revision(core.ReaderList{}, "Last", "Gate")
	f.Revision(core.First{}, "asOf")
	f.Revision(inside(core.First{}, "keys"), "at")
	f.Revision(core.Successor{}, "free")
	f.Revision(inside(core.Successor{}, "windows"), "revision")
	f.Revision(core.Others{}, "from")
	f.Revision(inside(core.Others{}, "gate"), "revision")
	f.Revision(inside(core.Others{}, "places"), "ticket")
	f.Revision(inside(core.Others{}, "gone"), "revision")
	f.Revision(kvstore.Record{}, "Revision")
	f.Revision(record.Body{}, "InUse")
	f.Revision(core.Adopting{}, "Token")
	for _, field := range []string{"Attempt", "Renewal", "Size"} {
		f.Ignore(record.Body{}, field, "nothing reads it of a record that the core has kept")
	}
	if s.travels() {
		f.Revision(record.Body{}, "Token")
	} else {
		f.Ignore(record.Body{}, "Token", "only who adopts the lock reads it")
	}

	const past = 1
	lists := pick(s.Linger > 0, 6*time.Second, 1500*time.Millisecond)
	f.HorizonOf(core.Run{}, past, "turnEnds")
	f.HorizonOf(inside(core.Run{}, "writing"), time.Second, "begun")
	if s.Linger == Forever {
		f.Ignore(inside(core.Run{}, "spare"), "ends", "it never comes")
	} else {
		f.HorizonOf(inside(core.Run{}, "spare"), past, "ends")
	}
	f.HorizonOf(core.Bid{}, past, "Until")
	f.HorizonOf(core.Validity{}, past, "End")
	f.Revision(core.Kept{}, "Last", "suspected")
	f.HorizonOf(core.Kept{}, past, "next")
	f.HorizonOf(core.Kept{}, 100*time.Millisecond, "requestedAt")
	f.Ignore(core.Kept{}, "Break", "it is only told")
	f.Ignore(core.Use{}, "since", "no lease is watched")
	f.Ignore(core.Use{}, "watchAt", "no lease is watched")
	f.HorizonOf(core.Use{}, past, "marked")
	f.HorizonOf(core.Lease{}, past, "Until")
	f.HorizonOf(core.Others{}, lists, "listedAt", "proven", "swept")
	f.HorizonOf(inside(core.Others{}, "gate"), lists, "listedAt", "at")
	f.HorizonOf(inside(core.Others{}, "gate"), past, "until")
	f.HorizonOf(inside(core.Others{}, "places"), past, "until")
	f.HorizonOf(inside(core.Others{}, "gone"), lists, "at")
	f.HorizonOf(inside(core.Successor{}, "windows"), time.Second, "last")
	f.HorizonOf(core.Successor{}, past, "readAt", "scanAt")
	f.HorizonOf(core.First{}, past, "due")
	for _, field := range []string{"Time", "Created"} {
		f.Ignore(core.ReaderList{}, field, "a list is judged at once")
	}
	f.HorizonOf(core.ReaderList{}, pick(s.Several, core.ProofWindow, past), "At")
	if s.Several {
		f.HorizonOf(core.ReaderList{}, core.ProofWindow, "Sent")
	} else {
		f.Ignore(core.ReaderList{}, "Sent", "one answer is a proof")
	}
	f.HorizonOf(core.Drain{}, core.ProofWindow, "first")
	f.Ignore(core.Attempt{}, "Floor", "the server never goes back")
	f.Ignore(core.Bid{}, "Begun", "streams have a leader")
}
