// Package faults tests what a lock guarantees when something goes wrong between a client and its
// bucket. Replies and writes are lost, late or refused. Records are forged or foreign. Servers are
// silent, full or restarted, deny permissions, or forget to remove records. Buckets are changed,
// re-created or unfit. Whatever happens, no two holders are within their validity at the same time,
// nothing left behind keeps others out, and the error says what happened.
//
// TestFaultAtEveryStep is the table of what can happen to each write. Add every new write to it.
package faults
