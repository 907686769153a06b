package node

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
)

// Overcommit is how many times over a host's processors, memory and disk may be
// promised to machines. Machines use little of what they are promised: an idle
// one of 1 GiB takes 27 to 31 MiB and half a percent of a processor, and one that has
// run a command 50 MiB (measured, see docs/performance.md). Memory is what
// breaks when everybody wants his share at once, so it has the smallest factor;
// processors are shared by weight and only get slower.
type Overcommit struct {
	CPU, Memory, Disk float64
}

// DefaultOvercommit is used where a factor is 0.
var DefaultOvercommit = Overcommit{CPU: 16, Memory: 4, Disk: 4}

// reservedMemoryMiB of the host are promised to nobody: the server, the kernel
// and the templates need them.
const reservedMemoryMiB = 1024

// capacityRetry is the hint for callers who find the host full.
const capacityRetry = 30 * time.Second

// claim is what a machine was promised. A paused one has only its disk.
type claim struct {
	MilliCPU  int `json:"milli_cpu"`
	MemoryMiB int `json:"memory_mib"`
	DiskMiB   int `json:"disk_mib"`
}

func claimOf(t eqvps.Tariff) claim {
	return claim{MilliCPU: t.MilliCPU, MemoryMiB: t.MemoryMiB, DiskMiB: t.DiskMiB}
}

// resting is the claim of the machine when it is paused.
func (c claim) resting() claim { return claim{DiskMiB: c.DiskMiB} }

// capacity is the host's books of claims.
type capacity struct {
	most claim        // that may be claimed in all; disk is asked for anew each time
	disk func() int64 // MiB on which machines' disks may grow, those that they take included
	over float64      // factor of disk

	mu     sync.Mutex
	claims map[string]claim
}

// newCapacity reads what the host has. dir is the data folder.
func newCapacity(o Overcommit, dir string) (*capacity, error) {
	for _, f := range []struct{ value, otherwise *float64 }{
		{&o.CPU, &DefaultOvercommit.CPU}, {&o.Memory, &DefaultOvercommit.Memory}, {&o.Disk, &DefaultOvercommit.Disk},
	} {
		if *f.value == 0 {
			*f.value = *f.otherwise
		}
		if *f.value < 0 {
			return nil, fmt.Errorf("the overcommit factor %v is negative", *f.value)
		}
	}
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return nil, fmt.Errorf("read the host's memory: %w", err)
	}
	memory := int64(si.Totalram)*int64(si.Unit)>>20 - reservedMemoryMiB
	return &capacity{
		most: claim{MilliCPU: int(o.CPU * float64(hostCPUs()) * 1000), MemoryMiB: int(o.Memory * float64(max(memory, 0)))},
		disk: func() int64 { return diskMiB(dir) }, over: o.Disk,
		claims: map[string]claim{},
	}, nil
}

// hostCPUs is how many processors this process may use.
func hostCPUs() int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 1
	}
	return max(1, set.Count())
}

// diskMiB is what machines' disks take and what is free beside them.
func diskMiB(dir string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0
	}
	sum := int64(st.Bavail) * st.Bsize
	disks, _ := filepath.Glob(filepath.Join(dir, "machines", "*", upperFile))
	for _, path := range disks {
		if fi, err := os.Stat(path); err == nil {
			sum += fi.Sys().(*syscall.Stat_t).Blocks * 512
		}
	}
	return sum >> 20
}

// take claims for a machine, in place of what it had before. CodeCapacity when
// the host has not so much left: then the old claim stays.
func (c *capacity) take(id string, want claim) error {
	disk := int64(c.over * float64(c.disk()))
	c.mu.Lock()
	defer c.mu.Unlock()
	var sum claim
	for other, has := range c.claims {
		if other != id {
			sum = sum.plus(has)
		}
	}
	sum = sum.plus(want)
	var short string
	switch {
	case want.MemoryMiB > 0 && sum.MemoryMiB > c.most.MemoryMiB:
		short = fmt.Sprintf("%d MiB of memory would be promised of %d", sum.MemoryMiB, c.most.MemoryMiB)
	case want.MilliCPU > 0 && sum.MilliCPU > c.most.MilliCPU:
		short = fmt.Sprintf("%d thousandths of a processor would be promised of %d", sum.MilliCPU, c.most.MilliCPU)
	case int64(sum.DiskMiB) > disk:
		short = fmt.Sprintf("%d MiB of disk would be promised of %d", sum.DiskMiB, disk)
	default:
		c.claims[id] = want
		return nil
	}
	e := eqvps.WrapError(eqvps.CodeCapacity, fmt.Errorf("the host is full: %s", short))
	e.RetryAfter = capacityRetry
	return e
}

// note enters a claim that was granted before.
func (c *capacity) note(id string, has claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claims[id] = has
}

// drop ends a claim.
func (c *capacity) drop(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.claims, id)
}

func (c claim) plus(o claim) claim {
	return claim{c.MilliCPU + o.MilliCPU, c.MemoryMiB + o.MemoryMiB, c.DiskMiB + o.DiskMiB}
}
