package doctor

import (
	"fmt"
	"math"
	"time"

	"github.com/natslock/locks/cmd/lockctl/internal/show"
	"github.com/natslock/locks/natslock/admin"
)

// renewals compares the renewals that the records in the bucket need with those they got.
// Scripts depend on it, so fields may be added but never renamed.
type renewals struct {
	Records   int     `json:"records"`              // records that clients renew
	Demand    float64 `json:"demand_per_second"`    // sum of 3/TTL over those records
	Confirmed float64 `json:"confirmed_per_second"` // demand of the records whose last write is recent enough
	Late      int     `json:"late"`                 // number of the other records
	Latest    float64 `json:"latest_seconds"`       // longest delay among the late records

	at   time.Time // server's time before the records were read
	name string    // record with the longest delay
}

// lateBy is the grace period for a renewal, which is due after a third of the TTL. A client
// batches renewals that are due at about the same time, and the server stores them one after
// another.
const lateBy = time.Second

// lateShare is the share of the demand that may be late without a warning. It allows for
// clients that have crashed.
const lateShare = 0.1

// count adds a record. A record that is renewed while the list is being read is not late.
func (r *renewals) count(ttl time.Duration, expires time.Time, name func() string) {
	if ttl <= 0 {
		return
	}
	r.Records++
	demand := 3 / ttl.Seconds()
	r.Demand += demand
	late := r.at.Sub(expires.Add(-ttl)) - ttl/3
	if late <= min(lateBy, ttl/3) {
		r.Confirmed += demand
		return
	}
	r.Late++
	if late.Seconds() > r.Latest {
		r.Latest, r.name = late.Seconds(), name()
	}
}

// renewed reports whether a holder's client renews the record. Clients renew the records of
// idle locks, but not those of broken ones.
func renewed(h admin.Holder) bool {
	return !h.Fixed && !h.Unreadable && !h.Overdue && h.Broken == nil
}

// judge returns the row for the renewals.
func (r *renewals) judge() (status, found, repair string) {
	for _, v := range []*float64{&r.Demand, &r.Confirmed, &r.Latest} {
		*v = math.Round(*v*1000) / 1000 // sums of thirds are inexact
	}
	if r.Records == 0 {
		return checkOK, "none needed: no client holds a lock that it renews, and none waits", ""
	}
	found = fmt.Sprintf("%s to renew: a demand of %.1f a second, %.1f confirmed in time", show.Count(r.Records, "record"), r.Demand, r.Confirmed)
	if r.Late > 0 {
		found += fmt.Sprintf("; %d late, the latest by %s: %s", r.Late, show.Brief(time.Duration(r.Latest*float64(time.Second))), r.name)
	}
	if r.Demand-r.Confirmed <= lateShare*r.Demand {
		return checkOK, found, ""
	}
	return checkWarning, found, "find clients that are dead or cut off. If most are alive, the servers or the network confirm too few writes: " +
		"hold fewer locks or give them a longer TTL, see docs/operate/many-locks.md"
}
