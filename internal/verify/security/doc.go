// Package security tests the roles of docs/permissions.conf and the claims of
// SECURITY.md. Each role can do its work, needs every permission that it has, and is
// refused everything else. The tests also show what a user inside the account can do to
// others. The package contains only tests.
package security
