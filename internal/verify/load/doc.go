// Package load asks more of a bucket than it can do.
package load
