package session

import (
	"testing"
	"unsafe"
)

// TestLeaseSize checks that a lease fits into the 640-byte size class, including the 8
// bytes that Go's allocator puts in front of it. The next class has 704 bytes, which would
// be the cost of every held lock.
func TestLeaseSize(t *testing.T) {
	if size := unsafe.Sizeof(Lease{}); unsafe.Sizeof(uintptr(0)) == 8 && size > 632 {
		t.Fatalf("a lease has %d bytes", size)
	}
}
