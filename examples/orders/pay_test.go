package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/natslock/locks/internal/verify/kit"
	"github.com/natslock/locks/testutil"
)

// TestLivez checks that only a connection closed for good fails the liveness probe, because a
// restart repairs that.
func TestLivez(t *testing.T) {
	s := testutil.RunServer(t)
	nc := s.Connect()
	web := routes(kit.NewClient(t, nc), nc)
	livez := func() int {
		w := httptest.NewRecorder()
		web.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/livez", nil))
		return w.Code
	}
	if code := livez(); code != http.StatusOK {
		t.Fatal(code)
	}
	s.Stop()
	if code := livez(); code != http.StatusOK {
		t.Fatalf("%d in an outage, which a restart does not repair", code)
	}
	nc.Close()
	if code := livez(); code != http.StatusServiceUnavailable {
		t.Fatal(code)
	}
}
