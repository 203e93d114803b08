package main

import (
	"context"
	"errors"
	"log"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/natslock"
)

func routes(locks *natslock.Client, nc *nats.Conn) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}/pay", func(w http.ResponseWriter, r *http.Request) {
		l, err := locks.Lock(r.Context(), natslock.Join("orders", r.PathValue("id")), natslock.MaxWait(2*time.Second))
		if err != nil {
			http.Error(w, err.Error(), status(err)) // nothing has been done
			return
		}
		err = pay(l.Context(), r.PathValue("id"), l.Token())
		unlock := l.Unlock(r.Context()) // ErrUnavailable is not a failure, because the lock was held until the payment finished
		if errors.Is(unlock, natslock.ErrLost) || errors.Is(unlock, natslock.ErrClosed) {
			err = errors.Join(err, unlock) // the payment may not have been exclusive
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := locks.Healthy(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		if nc.IsClosed() {
			http.Error(w, nats.ErrConnectionClosed.Error(), http.StatusServiceUnavailable)
		}
	})
	return mux
}

// status returns the HTTP status for a request that did not get its lock.
func status(err error) int {
	switch {
	case errors.Is(err, natslock.ErrUnavailable), errors.Is(err, natslock.ErrClosed):
		return http.StatusServiceUnavailable // checked first, because a wait that times out in an outage matches ErrTimeout too
	case errors.Is(err, natslock.ErrTimeout), errors.Is(err, natslock.ErrLocked):
		return http.StatusLocked
	}
	return http.StatusInternalServerError
}

// pay stands in for the work. It passes the token on and stops when ctx ends.
func pay(ctx context.Context, id string, token uint64) error {
	log.Printf("paying order %s, token %d", id, token)
	select {
	case <-time.After(time.Second):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
