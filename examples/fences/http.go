package fences

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/natslock/locks/fence"
)

// Fenced lets next serve only the requests of the newest holder. A request carries its
// token in the header [TokenHeader]. If the token is lower than one that came before it,
// the response is 412 Precondition Failed, and without a token it is 428 Precondition
// Required.
//
// Use it for a resource behind a single process, whose requests then run one at a time. If
// several processes serve a resource, compare the tokens in its database: see [SetBalance].
func Fenced(newest *Newest, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := strconv.ParseUint(r.Header.Get(TokenHeader), 10, 64)
		if err != nil {
			http.Error(w, "the request must have the header "+TokenHeader, http.StatusPreconditionRequired)
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
