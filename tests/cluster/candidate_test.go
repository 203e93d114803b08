package cluster_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/natslock"
)

// candidateOrder tells a candidate to run for the election until its standard input ends, and to
// resign whenever it reads a line.
type candidateOrder struct {
	URL  string
	TTL  time.Duration
	Name string
}

// termReport is a candidate's report at the beginning or the end of a term.
type termReport struct {
	Name  string
	Token uint64
	Begin time.Time
	// Checked is when the candidate last found itself to be the leader. It checks continuously. It
	// is zero at the beginning of a term.
	Checked time.Time
	Cause   string // set at the end of a term
}

func beCandidate(text []byte) error {
	var o candidateOrder
	if err := json.Unmarshal(text, &o); err != nil {
		return err
	}
	nc, err := nats.Connect(o.URL, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := natslock.New(ctx, nc, natslock.WithOwner(o.Name), natslock.WithTTL(o.TTL))
	if err != nil {
		return err
	}
	var saying sync.Mutex
	out := json.NewEncoder(os.Stdout)
	say := func(r termReport) {
		saying.Lock()
		defer saying.Unlock()
		_ = out.Encode(r)
	}
	resign := make(chan struct{})
	go func() {
		defer cancel()
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			resign <- struct{}{}
		}
	}()
	e := election.New(c, "processes", election.Value([]byte(o.Name)))
	say(termReport{Name: o.Name})
	_ = e.Run(ctx, func(ctx context.Context, t *election.Term) error {
		r := termReport{Name: o.Name, Token: t.Token(), Begin: time.Now()}
		say(r)
		defer func() { say(r) }()
		for {
			at := time.Now()
			token, ok := e.IsLeader()
			if !ok || token != t.Token() {
				<-ctx.Done() // the context must end, too
				r.Cause = fmt.Sprint(context.Cause(ctx))
				return nil
			}
			r.Checked = at
			select {
			case <-resign:
				r.Cause = "resigned"
				return nil
			case <-time.After(time.Millisecond):
			}
		}
	})
	return nil
}
