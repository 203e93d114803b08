// Command orders is an HTTP service that processes one payment per order at a time, no
// matter how many replicas run. It responds with 423 if another request holds the order's
// lock, and with 503 if the lock server is unreachable. On SIGTERM, it finishes the requests in
// progress.
package main

import (
	"cmp"
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/natslock/locks/natslock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	nc, err := nats.Connect(cmp.Or(os.Getenv("NATS_URL"), nats.DefaultURL), nats.Name("orders"), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
	if err != nil {
		log.Fatal(err)
	}
	locks, err := natslock.New(ctx, nc)
	if err != nil {
		log.Fatal(err)
	}
	web := &http.Server{Handler: routes(locks, nc), ReadHeaderTimeout: 5 * time.Second}
	l, err := net.Listen("tcp", cmp.Or(os.Getenv("LISTEN"), ":8080"))
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("serving http://%s", l.Addr())
	go web.Serve(l)

	<-ctx.Done()
	log.Print("shutting down")
	end, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err = errors.Join(
		web.Shutdown(end), // accepts no new requests, and lets running ones finish
		locks.Close(end),  // frees their locks for the other replicas
		nc.Drain(),        // closes the connection last
	)
	if err != nil {
		log.Fatal(err)
	}
}
