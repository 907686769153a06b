package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/eqvps/eqvps"
)

// monitorOverheadMiB is what a monitor may use beside its guest's memory: its
// own code and heap, its translation cache, its buffers. An idle one has been
// measured at 27–64 MiB in all.
const monitorOverheadMiB = 256

// maxMonitorThreads bounds a monitor's threads: virtual processors, I/O
// workers and a few of its own.
const maxMonitorThreads = 128

// cgroupRoot is the top of our part of the tree, below which each data folder
// has a part of its own.
const cgroupRoot = "/eqvps"

// v1Controllers are the hierarchies we use where the host has cgroup v1.
var v1Controllers = []cgroup1.Name{cgroup1.Cpu, cgroup1.Cpuacct, cgroup1.Memory, cgroup1.Pids}

// group is the cgroup of one machine, v1 or v2. Its name follows from the data
// folder and the machine's id, so it can be found without a record.
type group struct{ path string }

func (n *Node) group(id string) group {
	return group{filepath.Join(cgroupRoot, n.owner, id)}
}

func unified() bool { return cgroups.Mode() == cgroups.Unified }

func v1Hierarchy() ([]cgroup1.Subsystem, error) {
	all, err := cgroup1.Default()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(s cgroup1.Subsystem) bool {
		return !slices.Contains(v1Controllers, s.Name())
	}), nil
}

// shares is a tariff's weight among all that want a processor.
func shares(milliCPU int) *uint64 { return new(uint64(max(2, milliCPU*1024/1000))) }

// setWeight changes the cgroup's weight to that of another share of processor.
func (g group) setWeight(milliCPU int) error {
	return g.update(&specs.LinuxCPU{Shares: shares(milliCPU)})
}

// quotaPeriod is the time in microseconds over which a limit holds.
const quotaPeriod = 100_000

// limit holds the cgroup to a share of processor, in thousandths; 0 lifts the
// limit.
func (g group) limit(milliCPU int) error {
	quota := int64(milliCPU) * quotaPeriod / 1000
	if milliCPU == 0 {
		quota = -1
	}
	return g.update(&specs.LinuxCPU{Quota: &quota, Period: new(uint64(quotaPeriod))})
}

func (g group) update(cpu *specs.LinuxCPU) error {
	res := &specs.LinuxResources{CPU: cpu}
	if unified() {
		m, err := cgroup2.Load(g.path)
		if err != nil {
			return err
		}
		return m.Update(cgroup2.ToResources(res))
	}
	cg, err := cgroup1.Load(cgroup1.StaticPath(g.path), cgroup1.WithHierarchy(v1Hierarchy))
	if err != nil {
		return err
	}
	return cg.Update(res)
}

// create makes the cgroup: processor weight by tariff, memory for guest and
// monitor, a bound on threads. The guest's memory counts twice: the first write
// to a page that is a hole in the template's memory fills the hole as well as
// the machine's own copy, and the kernel charges both to who touched it. The
// filled hole is shared from then on, so a template grows to its guest's size at
// the most.
func (g group) create(t eqvps.Tariff) error {
	memory := int64(2*t.MemoryMiB+monitorOverheadMiB) << 20
	res := &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Shares: shares(t.MilliCPU)},
		Memory: &specs.LinuxMemory{Limit: &memory},
		Pids:   &specs.LinuxPids{Limit: new(int64(maxMonitorThreads))},
	}
	var err error
	if unified() {
		_, err = cgroup2.NewManager("/sys/fs/cgroup", g.path, cgroup2.ToResources(res))
	} else {
		_, err = cgroup1.New(cgroup1.StaticPath(g.path), res, cgroup1.WithHierarchy(v1Hierarchy))
	}
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", g.path, err)
	}
	return nil
}

func (g group) add(pid int) error {
	if unified() {
		m, err := cgroup2.Load(g.path)
		if err != nil {
			return err
		}
		return m.AddProc(uint64(pid))
	}
	cg, err := cgroup1.Load(cgroup1.StaticPath(g.path), cgroup1.WithHierarchy(v1Hierarchy))
	if err != nil {
		return err
	}
	return cg.AddProc(uint64(pid))
}

// oomKills is how many processes the kernel has killed in the cgroup for want
// of memory; 0 if it cannot be told.
func (g group) oomKills() int {
	file := filepath.Join("/sys/fs/cgroup", g.path, "memory.events")
	if !unified() {
		file = filepath.Join("/sys/fs/cgroup", string(cgroup1.Memory), g.path, "memory.oom_control")
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if count, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(count))
			return n
		}
	}
	return 0
}

// emptyTimeout bounds the wait for a cgroup whose last process is on its way
// out: the kernel still counts it for a moment after it has ended.
const emptyTimeout = 5 * time.Second

// remove deletes the cgroup. One that is not there is fine.
func (g group) remove() error {
	deadline := time.Now().Add(emptyTimeout)
	for {
		err := g.tryRemove()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (g group) tryRemove() error {
	if unified() {
		m, err := cgroup2.Load(g.path)
		if err != nil {
			return err
		}
		return ignoreAbsent(m.Delete())
	}
	cg, err := cgroup1.Load(cgroup1.StaticPath(g.path), cgroup1.WithHierarchy(v1Hierarchy))
	if errors.Is(err, cgroup1.ErrCgroupDeleted) {
		return nil
	}
	if err != nil {
		return err
	}
	return ignoreAbsent(cg.Delete())
}

// removeCgroups deletes the data folder's part of the tree when nothing is
// left in it; others' parts keep the top alive.
func (n *Node) removeCgroups() {
	mounts := []string{"/sys/fs/cgroup"}
	if !unified() {
		mounts = nil
		for _, c := range v1Controllers {
			mounts = append(mounts, filepath.Join("/sys/fs/cgroup", string(c)))
		}
	}
	for _, m := range mounts {
		// rmdir of a cgroup that has children fails, which is what is wanted.
		_ = os.Remove(filepath.Join(m, cgroupRoot, n.owner))
		_ = os.Remove(filepath.Join(m, cgroupRoot))
	}
}

func ignoreAbsent(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
