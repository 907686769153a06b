// Package vmm names what EQVPS asks of a virtual machine monitor: boot a
// machine, freeze it, restore many private copies of the frozen one, find a
// running one again after this process was replaced, and end it.
//
// The interface is small on purpose. Everything that two monitors would do
// alike (disks, slots, identity, billing) lives above it, in package node;
// everything that only one of them knows (QMP, command lines, sockets) lives
// below it, in vmm/qemu and its neighbours. Package vmmtest holds the contract
// that each implementation passes.
package vmm

import (
	"context"
	"errors"
	"net"
	"os"
	"time"
)

// ErrGone is returned by Adopt when the machine behind a handle no longer
// runs, and by the methods of a machine whose monitor has ended.
var ErrGone = errors.New("the machine is gone")

// Info tells which monitor runs the machines and how.
type Info struct {
	Monitor  string   // "qemu", "fake"
	Version  string   // the monitor's own version, e.g. "7.2.22"
	Accel    string   // "kvm" or "tcg"
	CPUModel string   // the CPU model guests see, e.g. "max"
	Reason   string   // one sentence: why this accelerator was chosen
	Warnings []string // one sentence each, for people: what this set-up does not promise
}

// Monitor starts machines. Implementations are safe for concurrent use.
type Monitor interface {
	// Info describes the monitor. It fails, with a sentence that says what to
	// install or change, when no machine could be started here.
	Info(ctx context.Context) (Info, error)
	// Boot starts a machine from its kernel. Its memory is the file
	// Spec.MemoryFile, created here, shared with the file so that a later
	// Snapshot need not copy it. Boot refuses a file that exists and does not
	// wait for the guest to come up.
	//
	// When Boot or Restore fails nothing is left: no process, no socket, no
	// memory file.
	Boot(ctx context.Context, spec Spec) (Machine, error)
	// Restore starts a machine from a snapshot: device state from Spec.State,
	// memory mapped privately from Spec.Memory. The machine runs when Restore
	// returns.
	Restore(ctx context.Context, spec Spec) (Machine, error)
	// Adopt finds a machine started earlier, perhaps by a process that was
	// killed. It returns ErrGone when that machine does not run any more,
	// also when its process id now belongs to something else. A handle without
	// process id (one that was written before the start) is looked up by its
	// id and folder.
	Adopt(ctx context.Context, h Handle) (Machine, error)
}

// Spec is what one machine is made of. Paths are absolute. The caller owns
// every file and folder; a monitor only opens them.
type Spec struct {
	ID         string // a name for process lists and logs; unique on the host
	Dir        string // a private folder for sockets; exists and is empty
	VCPUs      int    // processors the guest sees, at least 1
	MemoryMiB  int    // guest memory in MiB
	Kernel     string
	Initrd     string
	Cmdline    string // appended to what the monitor itself needs
	Disks      []Disk // in this order /dev/vda, /dev/vdb, …
	Network    *NIC   // nil: no network device
	MemoryFile string // Boot: the file that becomes the guest's memory
	// Restore: the snapshot's memory, best sealed by SealMemory, and its device
	// state, open for reading. Any number of machines may share both; their
	// offsets are not used.
	Memory *os.File
	State  *os.File
	// OnSpawn is called with the monitor's process id before the guest runs
	// its first instruction, e.g. to place it in a cgroup. An error ends the
	// machine.
	OnSpawn func(pid int) error
}

// Disk is one raw block device. Serial is what the guest reads from
// /sys/block/vdX/serial, at most MaxSerial bytes.
type Disk struct {
	Path     string
	Serial   string
	ReadOnly bool
	// Volatile lets the monitor answer a guest's flush without waiting for the
	// host's disk: fast, and after a power failure of the host the disk may be
	// torn. For disks that do not outlive their machine.
	Volatile bool
}

// NIC is the machine's network device: an existing tap in an existing network
// namespace. The same device name and MAC in every namespace is what lets one
// snapshot serve them all.
type NIC struct {
	Namespace string // path of the namespace, e.g. /run/netns/x
	Tap       string // name of the tap device inside that namespace
	MAC       string
}

// Handle is what must be remembered to find a machine again: plain data that
// survives in a store.
type Handle struct {
	Monitor   string `json:"monitor"`
	ID        string `json:"id"`
	Dir       string `json:"dir"`
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"` // clock ticks since host boot, field 22 of /proc/PID/stat: guards against reused ids
}

// Machine is one running machine. Its methods are safe for concurrent use.
type Machine interface {
	Handle() Handle
	// DialGuest opens the byte channel to the guest agent. The channel takes
	// one client at a time: a new connection closes this object's last one,
	// and behind that of another process it is connected and hears nothing. A
	// new connection may still carry bytes of the last session; package guest
	// re-synchronizes.
	DialGuest(ctx context.Context) (net.Conn, error)
	// Snapshot stops the guest and writes its device state to w. Memory
	// already is in Spec.MemoryFile. The machine stays stopped: the caller
	// copies what it needs (disks) and then kills it. Only a machine that was
	// booted can be snapshot.
	Snapshot(ctx context.Context, w *os.File) error
	// Console returns the last bytes (at most 64 KiB) the guest printed on
	// its console: untrusted text for diagnosis.
	Console(ctx context.Context) (string, error)
	// CPUTime is the processor time the monitor has used on the host, all
	// threads.
	CPUTime() (time.Duration, error)
	// Done is closed when the monitor's process has ended, for whatever reason.
	Done() <-chan struct{}
	// Kill ends the monitor at once and waits until its process is gone. It is
	// idempotent.
	Kill(ctx context.Context) error
	// Close drops this process's connections and leaves the machine running.
	// Done keeps telling of its end.
	Close() error
}
