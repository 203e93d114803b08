// Package faults guards what a lock promises when something goes wrong between a client and its
// bucket. Answers and writes are lost, late or refused. Records are forged or foreign. Servers
// are silent, full, restarted or without permission. Buckets are changed, re-created or unfit,
// and a server forgets to remove records. In all these cases there is never more than one holder
// inside its validity, nothing that is left behind keeps others out, and the error says what
// happened.
//
// TestFaultAtEveryStep is the table of what can happen to each write. Add every new write to it.
package faults
