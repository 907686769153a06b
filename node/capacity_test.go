package node

import (
	"errors"
	"testing"

	"github.com/eqvps/eqvps"
)

// TestCapacity: what was promised is kept, whichever of the three runs out.
func TestCapacity(t *testing.T) {
	free := int64(10_000)
	c := &capacity{most: claim{MilliCPU: 2000, MemoryMiB: 4096}, disk: func() int64 { return free }, over: 2, claims: map[string]claim{}}
	small := claim{MilliCPU: 500, MemoryMiB: 1024, DiskMiB: 5000}
	full := func(id string, want claim) {
		t.Helper()
		err := c.take(id, want)
		var e *eqvps.Error
		if !errors.As(err, &e) || e.Code != eqvps.CodeCapacity || e.RetryAfter == 0 {
			t.Errorf("%s: %v", id, err)
		}
	}
	ok := func(id string, want claim) {
		t.Helper()
		if err := c.take(id, want); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		ok(id, small)
	}
	full("e", small)
	ok("a", small) // its own claim is not in its way
	full("a", claim{MilliCPU: 600, MemoryMiB: 1024, DiskMiB: 5000})

	// A paused one keeps its disk.
	c.note("a", small.resting())
	full("e", small)
	free = 20_000
	ok("e", small)
	full("a", small)
	c.drop("b")
	ok("a", small)

	// A smaller host than before: what is there stays, and can be paused.
	free = 1
	full("f", claim{MilliCPU: 1, MemoryMiB: 1, DiskMiB: 1})
	c.note("c", small.resting())
}

// TestCapacityOfThisHost: the defaults leave room for many idle machines.
func TestCapacityOfThisHost(t *testing.T) {
	c, err := newCapacity(Overcommit{}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if c.most.MilliCPU < 16000 || c.most.MemoryMiB < 1 || c.disk() < 1 {
		t.Errorf("the host has %+v and %d MiB of disk", c.most, c.disk())
	}
	if _, err := newCapacity(Overcommit{CPU: -1}, t.TempDir()); err == nil {
		t.Error("a negative factor was accepted")
	}
}
