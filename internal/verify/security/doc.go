// Package security tests the roles of docs/permissions.conf and the claims of
// SECURITY.md: that each role can do its work, needs every permission it has, and
// is refused everything else; and what somebody inside the account can do to the
// others. It has no code but tests.
package security
