// Package security tests the roles in docs/permissions.conf and the claims in SECURITY.md. Each
// role must be able to do its work, must need every permission that it has, and must be refused
// everything else. The tests also show what a user inside the account can do to others. The
// package contains only tests.
package security
