// Package versions runs the library against released servers: the oldest version that it
// supports, and older versions that it must refuse. The servers are built from their modules
// and run as separate processes. The package has no code outside its tests.
package versions
