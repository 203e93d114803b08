package main

import (
	"context"
	"slices"
	"time"
)

// leaseTTL is how long every side's lock lasts unless its holder renews it.
const leaseTTL = 15 * time.Second

// Unlock releases a lock. It returns once the release has been sent and, if the side waits for
// an acknowledgment, acknowledged.
type Unlock = func(context.Context) error

// A Client represents one process that uses one kind of lock over its own connections.
type Client struct {
	// Lock waits for the named lock, which is held until unlock is called. The token is 0 if
	// the side has no fencing tokens.
	Lock func(ctx context.Context, name string) (unlock Unlock, token uint64, err error)
	// Sent returns the number of messages that the client has sent. It is nil if the side does
	// not count them.
	Sent func() uint64
	// Close closes the connections. The client must not hold any locks.
	Close func()
}

// A Side is a distributed lock, set up the way its users would.
type Side struct {
	Name string
	// Server is the kind of server that the side needs: "nats", "redis" or "etcd".
	Server string
	// Waiters is the largest number of waiters that the side is measured with; 0 means no
	// limit.
	Waiters int
	// Only lists the titles of the steps that the side is measured in; nil means all.
	Only []string
	// Settle is how long a waiter needs to reach its place in the queue; 0 means settle.
	Settle time.Duration
	// Setup tells readers of the report how the side was set up.
	Setup string
	// Open connects to the servers of a class.
	Open func(ctx context.Context, s *Servers) (*Client, error)
	// NotInMemory and NotReplicated say why the side cannot be measured in memory or with
	// replicas. They are empty if it can.
	NotInMemory, NotReplicated string
}

// sides lists all sides in the order of the tables. The first is the upper bound that the
// others are compared with.
var sides = []Side{bareSide, natslockSide, exactSide, lingerSide, naiveSide, redsyncSide, redislockSide, rueidislockSide, etcdSide}

// measures reports whether the side is measured in a step.
func (s Side) measures(st step) bool {
	if s.Only != nil {
		return slices.Contains(s.Only, st.title)
	}
	return (st.only == "" || st.only == s.Name) && (s.Waiters == 0 || st.waiters <= s.Waiters)
}

// unfit returns why the side is not measured on these servers, or "" if it is.
func (s Side) unfit(servers *Servers) string {
	switch {
	case servers.Class.Memory && s.NotInMemory != "":
		return s.NotInMemory
	case servers.Class.Replicas > 1 && s.NotReplicated != "":
		return s.NotReplicated
	}
	return servers.missing[s.Server]
}

// A Class is a durability guarantee. Only sides that give the same guarantee are compared.
type Class struct {
	Name, Title string
	Replicas    int
	Memory      bool // nothing is written to disk
	Sync        bool // every write is on disk before it is acknowledged
}

var classes = []Class{
	{Name: "memory", Title: "One server, memory", Replicas: 1, Memory: true},
	{Name: "file", Title: "One server, files without fsync", Replicas: 1},
	{Name: "fsync", Title: "One server, fsync before every answer", Replicas: 1, Sync: true},
	{Name: "r3", Title: "Three servers, files without fsync", Replicas: 3},
}
