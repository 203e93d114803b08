// Package load demands more of a bucket than it can do.
package load
