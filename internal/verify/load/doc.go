// Package load demands more of a bucket than it can handle.
package load
