// Package topologies tests the mutex and the reader-writer lock where the path to the bucket is
// not direct: with clusters, leaf nodes, domains, accounts, gateways, mirrors and slow links.
// It runs the same scenarios in each topology. The servers are started from the configuration
// files in docs/operate/topologies, which the documentation shows. The package has no code
// outside its tests.
package topologies
