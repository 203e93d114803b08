// Package faults guards what a lock promises when something goes wrong between a client and its
// bucket: answers and writes that are lost, late or refused, forged and foreign records, servers
// that are silent, full, restarted or without permission, buckets that are changed, re-created or
// unfit, and records that a server forgets to remove. There is never more than one holder inside
// its validity, nothing remains that keeps others out, and the error says what happened.
//
// TestFaultAtEveryStep is the table of what can happen to each write. Add each new write to it.
package faults
