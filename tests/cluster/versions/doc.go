// Package versions runs the library against released servers: the earliest ones that it
// supports, and older ones, which it has to refuse. The servers are built from their modules
// and run as separate processes. The package has no code outside its tests.
package versions
