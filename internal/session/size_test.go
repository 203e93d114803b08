package session

import (
	"testing"
	"unsafe"
)

// TestLeaseSize: a lease fits into the size class of 640 bytes, with the 8 bytes that Go's
// allocator puts before it. The next class is 704 bytes, which each held lock would cost.
func TestLeaseSize(t *testing.T) {
	if size := unsafe.Sizeof(Lease{}); unsafe.Sizeof(uintptr(0)) == 8 && size > 632 {
		t.Fatalf("a lease has %d bytes", size)
	}
}
