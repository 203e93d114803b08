// Package topologies tests the mutex and the reader-writer lock where the way to the
// bucket is not a straight one: clusters, leaf nodes, domains, accounts, gateways,
// mirrors, slow links. It runs the same scenarios in each of them. The servers are started
// from the configuration files of docs/operate/topologies, which the documentation shows.
// The package has no code but tests.
package topologies
