// Package proxy stands between a client and a server, and answers requests to the JetStream API
// the way a different server would: one that lags, is catching up, or is older.
package proxy

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/natslock/locks/testutil"
)

// prefix is the API prefix of a client behind a proxy.
const prefix = "proxy.API"

// JetStream returns a separate connection whose requests and writes pass through a proxy. The
// proxy calls intercept for each of them on a single goroutine. intercept either answers the
// request over nc, the proxy's connection, and returns true, or returns false to have the
// request passed on.
func JetStream(t testing.TB, srv *testutil.Server, intercept func(nc *nats.Conn, request *nats.Msg) bool) jetstream.JetStream {
	t.Helper()
	nc := srv.Connect()
	_, err := nc.Subscribe(prefix+".>", func(m *nats.Msg) {
		if !intercept(nc, m) {
			publish(t, nc, &nats.Msg{Subject: target(m), Reply: m.Reply, Header: m.Header, Data: m.Data})
		}
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.NewWithAPIPrefix(srv.Connect(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// Rewrite answers a JetStream API request with the server's answer after change has modified
// it. It returns true, for use in an intercept.
func Rewrite(t testing.TB, nc *nats.Conn, request *nats.Msg, change func(answer map[string]any)) bool {
	m, err := nc.Request(target(request), request.Data, time.Second)
	var answer map[string]any
	if err == nil {
		err = json.Unmarshal(m.Data, &answer)
	}
	if err != nil {
		t.Error(err)
		return true
	}
	change(answer)
	data, err := json.Marshal(answer)
	if err != nil {
		t.Error(err)
	}
	publish(t, nc, &nats.Msg{Subject: request.Reply, Data: data})
	return true
}

// Status answers a request with a message that has a status and no body. It returns true, for
// use in an intercept.
func Status(t testing.TB, nc *nats.Conn, request *nats.Msg, status string) bool {
	publish(t, nc, &nats.Msg{Subject: request.Reply, Header: nats.Header{"Status": {status}}})
	return true
}

// target returns the subject under which the server knows a request.
func target(m *nats.Msg) string {
	to := strings.TrimPrefix(m.Subject, prefix+".")
	if strings.HasPrefix(to, "$KV.") {
		return to
	}
	return "$JS.API." + to
}

func publish(t testing.TB, nc *nats.Conn, m *nats.Msg) {
	if err := nc.PublishMsg(m); err != nil {
		t.Error(err)
	}
}
