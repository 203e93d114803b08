package session

import (
	"testing"
	"unsafe"
)

// TestLeaseSize: a lease fits into the size class of 640 bytes. The next one is 704 bytes,
// which each held lock would cost.
func TestLeaseSize(t *testing.T) {
	if size := unsafe.Sizeof(Lease{}); unsafe.Sizeof(uintptr(0)) == 8 && size > 640 {
		t.Fatalf("a lease has %d bytes", size)
	}
}
