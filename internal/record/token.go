package record

import "strings"

// tokenBits is the number of low bits of a token, which number the grants of one revision.
const tokenBits = 6

// GrantsPerRevision is the number of grants that one write of a record can have. Each has its own fencing token.
const GrantsPerRevision = 1 << tokenBits

// Token returns the fencing token of grant n, from 0, of the write at revision. Tokens rise with the revision first,
// and then with n. n is below [GrantsPerRevision]: otherwise the result would be the token of a later revision.
func Token(revision uint64, n int) uint64 { return revision<<tokenBits | uint64(n) }

// TokenRevision returns the revision of the write from which a fencing token was made.
func TokenRevision(token uint64) uint64 { return token >> tokenBits }

// TokenGrant returns the number of a token's grant among the grants of its revision.
func TokenGrant(token uint64) int { return int(token % GrantsPerRevision) }

// TokenOrTicket returns the number of a claim whose first write was stored under key at revision. For a place this is
// its ticket, the revision itself, and for any other record the first fencing token of that revision.
func TokenOrTicket(key string, revision uint64) uint64 {
	if strings.HasPrefix(key, WaitPrefix) || strings.HasPrefix(key, RWaitPrefix) || strings.HasPrefix(key, SWaitPrefix) {
		return revision
	}
	return Token(revision, 0)
}
