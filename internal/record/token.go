package record

import "strings"

// tokenBits is the number of low bits in a token that number the grants of one revision.
const tokenBits = 6

// GrantsPerRevision limits the number of grants from one write of a record. Each grant has its own fencing token.
const GrantsPerRevision = 1 << tokenBits

// Token returns the fencing token of grant n, counting from 0, of the write at revision. Tokens increase with the
// revision and, within a revision, with n. n must be below [GrantsPerRevision]; otherwise the result would be a token
// of a later revision.
func Token(revision uint64, n int) uint64 { return revision<<tokenBits | uint64(n) }

// TokenRevision returns the revision of the write that a token was derived from.
func TokenRevision(token uint64) uint64 { return token >> tokenBits }

// TokenGrant returns the number of a token's grant within its revision.
func TokenGrant(token uint64) int { return int(token % GrantsPerRevision) }

// TokenOrTicket returns the number of a claim whose first write was stored under key at revision. For a place that is
// its ticket, which is the revision itself; for any other record it is the revision's first fencing token.
func TokenOrTicket(key string, revision uint64) uint64 {
	if strings.HasPrefix(key, WaitPrefix) || strings.HasPrefix(key, RWaitPrefix) || strings.HasPrefix(key, SWaitPrefix) {
		return revision
	}
	return Token(revision, 0)
}
