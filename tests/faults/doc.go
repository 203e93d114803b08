// Package faults guards what a lock promises when something goes wrong between a client and its
// bucket: answers and writes that are lost, late or refused, forged and foreign records, servers that
// are silent, full, restarted or without permission, buckets that are changed, re-created or unfit, and
// records that a server forgets to remove. There is never more than one holder inside its validity,
// nothing is left that keeps others out, and the error says what has happened.
//
// TestFaultAtEveryStep is the table of what can happen to each write: add each new write to it.
package faults
