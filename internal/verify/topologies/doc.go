// Package topologies runs the stories of the mutex and of the reader-writer lock
// where the way to the bucket is not a straight one: clusters, leaf nodes,
// domains, accounts, gateways, mirrors, slow links. The servers are started from
// the configuration files of docs/operate/topologies, which the documentation shows. It
// has no code but tests.
package topologies
