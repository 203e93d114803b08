package fences

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/natslock/locks/fence"
)

// Fenced lets next serve the requests of the newest holder only. A request has its token in
// the header [TokenHeader]. A smaller token than one before is answered with the status
// 412 Precondition Failed, and a request without a token with 428 Precondition Required.
//
// It is for a resource behind one process, whose requests then run one after the other. A
// resource with several processes compares in its database: see [SetBalance].
func Fenced(newest *Newest, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := strconv.ParseUint(r.Header.Get(TokenHeader), 10, 64)
		if err != nil {
			http.Error(w, "the request needs the header "+TokenHeader, http.StatusPreconditionRequired)
			return
		}
		err = newest.Apply(token, func() error {
			next.ServeHTTP(w, r)
			return nil
		})
		switch {
		case errors.Is(err, fence.ErrSuperseded):
			http.Error(w, err.Error(), http.StatusPreconditionFailed)
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
}
