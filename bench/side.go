package main

import (
	"context"
	"slices"
	"time"
)

// leaseTTL is how long every side's lock lives without a renewal by its holder.
const leaseTTL = 15 * time.Second

// A Client is one process's access to one kind of lock, over connections of its own.
type Client interface {
	// Lock waits for the named lock. It is held until unlock is called. unlock waits
	// until the release has been sent and, where the side reports that, acknowledged.
	Lock(ctx context.Context, name string) (unlock func(context.Context) error, err error)
	// Close gives up the connections. No lock may be held.
	Close()
}

// A Side is one way to lock, as its users run it.
type Side struct {
	Name string
	// Server is the kind of server it needs: "nats", "redis" or "etcd".
	Server string
	// Waiters is how many waiters it can be measured with; 0: any number.
	Waiters int
	// Only has the steps it is measured in, by title; nil: all but those that other
	// sides name.
	Only []string
	// Settle is how long a waiter takes to be in its place after all; 0: settle.
	Settle time.Duration
	// Setup says in a few words how it was set up, for the report.
	Setup string
	// Open connects to the servers of a class.
	Open func(ctx context.Context, s *Servers) (Client, error)
	// Unfit says why the side cannot be measured in a class; nil or "": it can.
	Unfit func(Class) string
}

// A Fencer is a [Client] whose locks have fencing tokens.
type Fencer interface {
	// LockFenced is Lock, and returns the token too.
	LockFenced(ctx context.Context, name string) (unlock func(context.Context) error, token uint64, err error)
}

// A Counter is a [Client] that counts the messages that it has sent.
type Counter interface {
	Sent() uint64
}

// sides are all sides, in the order of the tables. The first is the limit that
// the others are compared with.
var sides = []Side{bareSide, natslockSide, exactSide, lingerSide, naiveSide, redsyncSide, redislockSide, rueidislockSide, etcdSide}

// measures says whether the side is measured in a step.
func (s Side) measures(st step) bool {
	if s.Only != nil {
		return slices.Contains(s.Only, st.title)
	}
	return !st.named && (s.Waiters == 0 || st.waiters <= s.Waiters)
}

// unfit says why the side cannot be measured on these servers.
func (s Side) unfit(servers *Servers) string {
	if s.Unfit != nil {
		if why := s.Unfit(servers.Class); why != "" {
			return why
		}
	}
	return servers.Missing[s.Server]
}

// A Class is a promise of durability: only sides that give the same one are compared.
type Class struct {
	Name, Title string
	Replicas    int
	Memory      bool // nothing is written to a disk
	Sync        bool // every write is on the disk before it is acknowledged
}

var classes = []Class{
	{Name: "memory", Title: "One server, memory", Replicas: 1, Memory: true},
	{Name: "file", Title: "One server, files without fsync", Replicas: 1},
	{Name: "fsync", Title: "One server, fsync before every answer", Replicas: 1, Sync: true},
	{Name: "r3", Title: "Three servers, files without fsync", Replicas: 3},
}
