package main

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

var etcdSide = Side{
	Name: "etcd", Server: "etcd",
	// The server lets a watch that starts in the past, as a waiter's does, catch up only every
	// 100 ms.
	Settle: 120 * time.Millisecond,
	Setup: "`concurrency.Mutex`, sessions of 15 s, renewed, a session for each lock that is held or waited for. " +
		"A lock is held for 120 ms before a hand-over, because the server notifies a new waiter only from its next 100 ms tick on",
	NotInMemory: "it always writes files",
	Open: func(_ context.Context, s *Servers) (*Client, error) {
		client, err := clientv3.New(clientv3.Config{Endpoints: s.addrs["etcd"], DialTimeout: patience, Logger: zap.NewNop()})
		if err != nil {
			return nil, err
		}
		c := &etcdClient{client: client}
		return &Client{Lock: c.lock, Close: c.close}, nil
	},
}

// etcdClient reuses sessions, because users of etcd do not create one for each lock. Two
// waiters for the same lock need two sessions, because mutexes of the same session do not
// exclude each other.
type etcdClient struct {
	client *clientv3.Client

	mu   sync.Mutex
	idle []*concurrency.Session
}

func (c *etcdClient) session() (*concurrency.Session, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		s := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return s, nil
	}
	c.mu.Unlock()
	return concurrency.NewSession(c.client, concurrency.WithTTL(int(leaseTTL/time.Second)))
}

func (c *etcdClient) giveBack(s *concurrency.Session) {
	c.mu.Lock()
	c.idle = append(c.idle, s)
	c.mu.Unlock()
}

func (c *etcdClient) lock(ctx context.Context, name string) (Unlock, uint64, error) {
	s, err := c.session()
	if err != nil {
		return nil, 0, err
	}
	m := concurrency.NewMutex(s, "/"+name)
	if err := m.Lock(ctx); err != nil {
		c.giveBack(s)
		return nil, 0, err
	}
	return func(ctx context.Context) error {
		defer c.giveBack(s)
		return m.Unlock(ctx)
	}, 0, nil
}

func (c *etcdClient) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.idle {
		s.Orphan() // its lease ends with the server
	}
	_ = c.client.Close()
}
