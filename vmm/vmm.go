// Package vmm names what EQVPS asks of a virtual machine monitor: boot a
// machine, freeze it, restore many private copies of the frozen one, put a
// running one away and bring it back, find a running one again after this
// process was replaced, and end it.
//
// A machine is frozen in one of two ways. A snapshot is made once, of a machine
// that was booted for it, and is restored any number of times: its memory is a
// file that all copies map. A suspended machine is one of those copies, put
// away for itself: its device state and the pages of memory in which it differs
// from the snapshot. Pages never touch a file here: the caller gets them in
// its own memory, and can encrypt what it stores.
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
	// Snapshot need not copy it, or lies in no file if that is empty. Boot
	// refuses a file that exists and does not wait for the guest to come up.
	//
	// When Boot or Restore fails nothing is left: no process, no socket, no
	// memory file.
	Boot(ctx context.Context, spec Spec) (Machine, error)
	// Restore starts a machine from a snapshot: device state from Spec.State,
	// memory mapped privately from Spec.Memory. With Spec.Pages it brings back
	// a suspended machine. The machine runs when Restore returns.
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
	ID        string // a name for process lists and logs; unique on the host
	Dir       string // a private folder for sockets; exists and is empty
	VCPUs     int    // processors the guest sees, at least 1
	MemoryMiB int    // guest memory in MiB
	Kernel    string
	Initrd    string
	Cmdline   string // appended to what the monitor itself needs
	Disks     []Disk // in this order /dev/vda, /dev/vdb, …
	Network   *NIC   // nil: no network device
	// Boot: the file that becomes the guest's memory. Empty: memory that lies in
	// no file, for a machine whose memory must not be readable on a disk. Such
	// a machine cannot be Snapshot, but it can be suspended.
	MemoryFile string
	// Restore: the snapshot's memory, best sealed by SealMemory, and its device
	// state, open for reading. Any number of machines may share both; their
	// offsets are not used. Of a suspended machine, State is what Suspend wrote,
	// and Memory that of the snapshot it was restored from: nil if there is
	// none and its pages are all there is.
	Memory *os.File
	State  *os.File
	// Restore: not nil for a suspended machine. It is called once, after
	// OnSpawn and before the guest runs, and calls put for every run of pages
	// that Suspend passed on, in any order or split, one after another; put
	// keeps nothing of the slice and refuses an address or a length that is no
	// multiple of PageSize, and what lies outside the machine's memory. An error
	// of Pages, or of any put, ends the machine.
	Pages func(put PageFunc) error
	// OnSpawn is called with the monitor's process id before the guest runs
	// its first instruction, e.g. to place it in a cgroup. An error ends the
	// machine.
	OnSpawn func(pid int) error
}

// PageSize is the size in bytes of the pages that Suspend counts in.
const PageSize = 4096

// MaxPages bounds the bytes that Suspend passes on at once.
const MaxPages = 1 << 20

// PageFunc takes a run of whole pages of a machine's memory. The address tells
// where they lie and is a number of the monitor's own: pages go back under the
// address under which they came. The slice is good only during the call.
type PageFunc = func(address uint64, pages []byte) error

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
	// booted, and has a memory file, can be snapshot.
	Snapshot(ctx context.Context, w *os.File) error
	// Suspend stops the guest, writes its device state to the file state,
	// whose content it replaces, and passes to page every page of memory that
	// differs, or may differ, from the snapshot the machine was restored from,
	// in ascending order, in runs of at most MaxPages bytes. If it was booted,
	// or restored without a snapshot's memory, these are all pages in use.
	// What the guest wrote to its disks is in their files, but not synced.
	//
	// The machine stays stopped, as a rule also when Suspend fails: the caller
	// kills it, or lets it run on with Continue. An error of page ends Suspend
	// and is returned. The state is a regular file or one in memory.
	Suspend(ctx context.Context, state *os.File, page PageFunc) error
	// Continue lets a machine that Suspend has stopped run on as if nothing
	// had been; connections to the guest are still good. A running machine
	// just runs on.
	Continue(ctx context.Context) error
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
