// Command spindle shows how to do with natslock what spindle does on Cloud Spanner. Several
// processes campaign for one lock, and another one takes over when the leader crashes. The
// program starts three copies of itself, kills the leader, and watches the failover.
//
//   - Run campaigns until its context ends. The channel done then receives its result.
//   - HasLock is Election.IsLeader, which needs no I/O and returns the fencing token.
//   - Election.Leader returns the leader, and OnChange calls a function when the leader
//     changes.
//   - WithTTL sets the length of the lease, at least 1 s. WithOwner sets the id of a
//     process, and WithLogger receives its warnings.
//   - When a leader crashes, the next one takes over within the lease plus half a second. A
//     leader that was paused finds that it no longer leads. Its token is lower than the
//     next leader's, so a resource that compares tokens refuses its writes.
//
// It needs a server:
//
//	lockctl server &
//	go run ./examples/spindle
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/exec"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/election"
	"github.com/natslock/locks/natslock"
)

const name = "spindle.leader"

func main() {
	server := flag.String("server", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "NATS `URL`")
	lease := flag.Duration("lease", 2*time.Second, "how long others wait after the leader crashes")
	id := flag.String("id", "", "campaign under this name until standard input ends")
	flag.Parse()
	log.SetFlags(log.Lmicroseconds)
	nc, err := nats.Connect(*server, nats.Name("spindle"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	locks, err := natslock.New(context.Background(), nc, natslock.WithTTL(*lease), natslock.WithOwner(*id),
		natslock.WithLogger(slog.Default()))
	if err != nil {
		log.Fatal(err)
	}
	if *id != "" {
		err = campaign(locks, *id)
	} else {
		err = watch(locks, "-server", *server, "-lease", lease.String())
	}
	if err != nil {
		log.Fatal(err)
	}
}

// campaign takes part in the election until standard input ends.
func campaign(locks *natslock.Client, id string) error {
	ctx, quit := context.WithCancel(context.Background())
	e := election.New(locks, name, election.OnChange(func(l election.Leader) {
		log.Printf("%s: the leader is %q", id, l.Owner)
	}))
	done := make(chan error, 1)
	go func() {
		done <- e.Run(ctx, func(ctx context.Context, t *election.Term) error {
			token, has := e.IsLeader()
			log.Printf("%s: holding the lock: %v, token %d", id, has, token)
			<-ctx.Done() // the leader's work
			return nil
		})
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	quit()
	log.Printf("%s: ended: %v", id, <-done)
	return locks.Close(context.Background())
}

// watch starts three processes, kills the first leader, and waits for the second.
func watch(locks *natslock.Client, args ...string) error {
	processes := map[int]*exec.Cmd{}
	for _, id := range []string{"one", "two", "three"} {
		cmd := exec.Command(os.Args[0], append(args, "-id", id)...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		defer func() { _ = stdin.Close(); _ = cmd.Wait() }()
		processes[cmd.Process.Pid] = cmd
	}
	var killed time.Time
	var token uint64
	for l, err := range election.New(locks, name).Observe(context.Background()) {
		switch {
		case err != nil:
			return err
		case processes[l.PID] == nil || l.Token == token: // no new leader yet
		case token == 0:
			token, killed = l.Token, time.Now()
			fmt.Println("killed:", l.Owner, processes[l.PID].Process.Kill())
		default:
			fmt.Println("took over:", l.Owner, "after", time.Since(killed), "with a higher token:", l.Token > token)
			return nil
		}
	}
	return nil
}
