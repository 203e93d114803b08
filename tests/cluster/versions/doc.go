// Package versions runs the library against released servers: the first ones
// that it supports, and older ones, which it has to refuse. The servers are
// built from their modules and run as processes of their own. It has no code but
// tests.
package versions
