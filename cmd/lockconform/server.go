package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// startLimit limits how long a server may take to start.
const startLimit = 10 * time.Second

// startServer starts a server on the loopback interface, with its data in dir. If port is 0, it
// picks any free port. If users are given, the server accepts only them, and treats a client that
// names no user as the first of them.
func startServer(dir string, port int, users ...*server.User) (*server.Server, error) {
	anybody := ""
	if len(users) > 0 {
		anybody = users[0].Username
	}
	srv, err := server.NewServer(&server.Options{
		Users: users, NoAuthUser: anybody,
		Host: "127.0.0.1", Port: cmp.Or(port, server.RANDOM_PORT),
		JetStream: true, StoreDir: dir,
		NoSigs: true, NoLog: true,
	})
	if err != nil {
		return nil, err
	}
	srv.Start()
	if !srv.ReadyForConnections(startLimit) || !srv.JetStreamEnabled() {
		stopServer(srv)
		return nil, fmt.Errorf("the server in this process did not start within %v", startLimit)
	}
	return srv, nil
}

// stopServer stops a server, and waits until it has written its data.
func stopServer(srv *server.Server) {
	srv.Shutdown()
	srv.WaitForShutdown()
}
