// Package topologies tests the mutex and the reader-writer lock where the path to the bucket is not
// direct: through clusters, leaf nodes, domains, accounts, gateways, mirrors and slow links. It
// runs the same scenarios in each topology. The servers start from the configuration files in
// docs/operate/topologies that the documentation shows. The package has no code outside its tests.
package topologies
