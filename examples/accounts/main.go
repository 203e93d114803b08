// Command accounts is an HTTP service that locks each account while changing it. Any
// number of replicas serve the same accounts. Postings to one account run one at a time,
// and postings to different accounts run in parallel.
//
//	lockctl server &
//	go run ./examples/accounts -listen 127.0.0.1:8081 &
//	go run ./examples/accounts -listen 127.0.0.1:8082 &
//	curl -i -X POST '127.0.0.1:8081/accounts/alice/postings?amount=5'
//	curl -i -X POST '127.0.0.1:8082/accounts/alice/postings?amount=-3'
//	curl -i 127.0.0.1:8082/accounts/alice
//
// If -approve names another service, each posting first asks that service for approval. A
// compare-and-set alone would not be enough then, because two postings could be approved
// against the same balance.
//
// If a response has a Retry-After header, the request has changed nothing. The status says
// why:
//
//   - 423: others kept the account locked for longer than -wait.
//   - 503: the servers did not respond, or this replica is shutting down.
//   - 409: a newer holder of the lock has changed the account.
//
// After a status of 500, the posting may have been stored.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/fence"
	"github.com/natslock/locks/natslock"
)

func main() {
	server := flag.String("server", cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), "NATS `URL`")
	listen := flag.String("listen", "127.0.0.1:8080", "`address` to listen on")
	s := &service{}
	flag.DurationVar(&s.wait, "wait", 10*time.Second, "how long a request waits for its account")
	ttl := flag.Duration("ttl", 5*time.Second, "how long others wait for the accounts of a crashed replica")
	flag.StringVar(&s.approve, "approve", "", "`URL` that must approve each posting; empty for none")
	flag.Parse()
	log.SetFlags(log.Lmicroseconds)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := s.run(ctx, *server, *listen, *ttl); err != nil {
		log.Fatal(err)
	}
}

// service holds the state of the handlers.
type service struct {
	locks    *natslock.Client
	accounts jetstream.KeyValue
	wait     time.Duration
	approve  string
}

func (s *service) run(ctx context.Context, server, listen string, ttl time.Duration) error {
	nc, err := nats.Connect(server, nats.Name("accounts"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
	if err != nil {
		return err
	}
	defer nc.Close()
	s.locks, err = natslock.New(ctx, nc, natslock.WithTTL(ttl))
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	s.accounts, err = js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "accounts"})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /accounts/{id}/postings", s.post)
	mux.HandleFunc("GET /accounts/{id}", s.show)
	mux.HandleFunc("GET /healthz", s.healthy)
	web := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	log.Printf("pid %d: serving http://%s", os.Getpid(), l.Addr())
	served := make(chan error, 1)
	go func() { served <- web.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}

	// New requests, and those waiting for an account, get a 503. Requests in progress
	// finish and release their locks, unless they take longer than this timeout.
	log.Printf("pid %d: shutting down, requests in progress: %d", os.Getpid(), s.locks.Stats().Held)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err = errors.Join(s.locks.Close(ctx), web.Shutdown(ctx))
	<-served
	return err
}

// account is a value in the bucket. Token is the fencing token of its last writer.
type account struct {
	Balance int    `json:"balance"`
	Token   uint64 `json:"token"`
}

// post changes an account's balance under the account's lock.
func (s *service) post(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	amount, err := strconv.Atoi(r.FormValue("amount"))
	if err != nil {
		http.Error(w, "the amount is not a whole number", http.StatusBadRequest)
		return
	}
	// If the HTTP client goes away, both the wait and the work end.
	l, err := s.locks.Lock(r.Context(), natslock.Join("accounts", id), natslock.MaxWait(s.wait))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer func() {
		// The bucket has already checked the token of any write, so an error here does not
		// change the response.
		if err := l.Unlock(r.Context()); err != nil {
			log.Printf("pid %d: %v", os.Getpid(), err)
		}
	}()
	a, err := s.change(l, id, amount)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a) // fails if the HTTP client has gone away
}

var (
	errRefused = errors.New("the posting was not approved")
	errUnknown = errors.New("it is unknown whether the posting was stored; read the account")
)

// change reads an account, asks for approval, and writes the account. The lock's context
// ends before another replica gets the lock, but a suspended replica does not notice that
// in time, so the account also keeps the token of its last writer.
func (s *service) change(l *natslock.Lock, id string, amount int) (a account, err error) {
	ctx := l.Context()
	var revision uint64
	switch entry, err := s.accounts.Get(ctx, id); {
	case err == nil:
		revision = entry.Revision()
		if err := json.Unmarshal(entry.Value(), &a); err != nil {
			return a, err
		}
	case !errors.Is(err, jetstream.ErrKeyNotFound):
		return a, err
	}
	if err := fence.Check(a.Token, l.Token()); err != nil {
		return a, err
	}
	a = account{Balance: a.Balance + amount, Token: l.Token()}
	if err := s.ask(ctx, id, a); err != nil {
		return a, err
	}
	value, err := json.Marshal(a)
	if err != nil {
		return a, err
	}
	// The check above and this write are atomic, because a write in between would change
	// the revision.
	_, err = s.accounts.Update(ctx, id, value, revision)
	if err != nil && !errors.Is(err, jetstream.ErrKeyExists) {
		err = fmt.Errorf("%w: %w", errUnknown, err)
	}
	return a, err
}

// ask requests approval for a new balance. The token lets the other service refuse stale
// holders too.
func (s *service) ask(ctx context.Context, id string, a account) error {
	if s.approve == "" {
		return nil
	}
	form := url.Values{"account": {id}, "balance": {strconv.Itoa(a.Balance)}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.approve+"?"+form.Encode(), nil)
	if err != nil {
		return err
	}
	r.Header.Set("Fencing-Token", strconv.FormatUint(a.Token, 10))
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: %s", errRefused, response.Status)
	}
	return nil
}

// show reads an account without a lock.
func (s *service) show(w http.ResponseWriter, r *http.Request) {
	entry, err := s.accounts.Get(r.Context(), r.PathValue("id"))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(entry.Value()) // fails if the HTTP client has gone away
}

// healthy tells a load balancer whether this replica can take locks.
func (s *service) healthy(w http.ResponseWriter, r *http.Request) {
	if err := s.locks.Healthy(); err != nil {
		s.fail(w, r, err)
	}
}

// fail responds to a request that has changed nothing or whose outcome is unknown.
func (s *service) fail(w http.ResponseWriter, r *http.Request, err error) {
	var status int
	switch {
	case r.Context().Err() != nil:
		return // the HTTP client has gone away
	case errors.Is(err, errUnknown):
		status = http.StatusInternalServerError
	case errors.Is(err, errRefused):
		status = http.StatusForbidden
	case errors.Is(err, jetstream.ErrKeyNotFound):
		status = http.StatusNotFound
	case errors.Is(err, natslock.ErrInvalid), errors.Is(err, jetstream.ErrInvalidKey):
		status = http.StatusBadRequest
	case errors.Is(err, fence.ErrSuperseded), errors.Is(err, jetstream.ErrKeyExists):
		status = http.StatusConflict
	case errors.Is(err, natslock.ErrTimeout) && !errors.Is(err, natslock.ErrUnavailable):
		status = http.StatusLocked
	default: // the servers do not respond, or this replica is shutting down
		status = http.StatusServiceUnavailable
	}
	switch status {
	case http.StatusConflict, http.StatusLocked, http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1") // seconds
	}
	log.Printf("pid %d: %s %s: %d: %v", os.Getpid(), r.Method, r.URL.Path, status, err)
	http.Error(w, http.StatusText(status), status)
}
