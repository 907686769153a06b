package eqvps

import (
	"context"
	"time"
)

// Host runs machines. Its own records, on its own disk, tell what it runs: a
// host can be asked for a machine that a process now dead has started.
type Host interface {
	Pauser
	// Start makes a fresh machine and returns when its guest answers. An error
	// leaves nothing behind. Codes: CodeUnknownImage, CodeCapacity,
	// CodeStartFailed.
	Start(ctx context.Context, m StartMachine) (Machine, error)
	// Adopt finds a machine started earlier. An error means that it is gone
	// for good; Destroy then frees what is left of it.
	Adopt(ctx context.Context, id string) (Machine, error)
	// Records lists every machine for which something may exist on the host,
	// whether it runs or not.
	Records() ([]string, error)
	// Destroy ends a machine and frees everything it had: process, slot, disk,
	// cgroup, record. It is idempotent; an error means that something is left
	// and that it should be called again.
	Destroy(ctx context.Context, id string) error
}

// StartMachine is what a machine is made from.
type StartMachine struct {
	ID      string
	Tariff  Tariff
	Image   string // name or id; "" is the default image
	Env     Env
	Network NetworkPolicy // in force before anything of the sandbox runs
	// Persistent machines can be paused, and their disk outlives them: what a
	// guest has flushed is on the host's disk.
	Persistent bool
	// Key encrypts what a pause of this machine writes: 32 bytes, its own.
	// Only persistent machines have one.
	Key []byte
}

// Pauser is what a Host does for persistent machines.
type Pauser interface {
	// Pause puts a running machine away: processes frozen, memory encrypted with
	// key and written beside its disk, everything else freed. When it returns nil
	// all of it is on disk for good; on an error the machine runs on, or else
	// its Done is closed. Foreground commands under way are ended. CodeCapacity
	// when the host's disk has no room for it.
	Pause(ctx context.Context, id string, key []byte) error
	// Resume brings a paused machine back as it was, with a clock and randomness
	// that are new before any of its processes goes on. Paused memory is used
	// once: it is gone when Resume returns nil. On an error nothing runs and it is
	// still there, unless the guest may have gone on from it without an answer:
	// Paused tells. A machine that still runs, because the process that paused it
	// died in the middle, is taken back as it is. CodeStartFailed, also where this
	// host cannot go on with such memory any more; CodeCapacity.
	Resume(ctx context.Context, m StartMachine) (Machine, error)
	// Reboot starts a machine anew from the disk that an earlier one of this id
	// has left, whatever became of that one. Paused memory, if any, is dropped.
	Reboot(ctx context.Context, m StartMachine) (Machine, error)
	// Paused reports whether the machine lies paused and whole on this host.
	Paused(id string) bool
}

// Machine is one running machine of a host.
type Machine interface {
	Guest
	// Image is the id of the image it runs.
	Image() string
	// SetNetwork changes what the guest may reach, at once and as a whole.
	SetNetwork(ctx context.Context, p NetworkPolicy) error
	// Ping asks the guest agent for a sign of life.
	Ping(ctx context.Context) error
	// SetEnv changes its variables for the commands that start from then on. The
	// guest merges them: nothing else keeps their values. CodeTooLarge,
	// CodeInvalidValue when what comes of it is not allowed: nothing is changed.
	SetEnv(ctx context.Context, c EnvChange) error
	// TaskActivity tells whether its background tasks keep it from being idle.
	TaskActivity(ctx context.Context) (TaskActivity, error)
	// CPUTime and EgressBytes tell what it has used so far.
	CPUTime() (time.Duration, error)
	EgressBytes() (uint64, error)
	// Done is closed when the machine has died, for whatever reason.
	Done() <-chan struct{}
	// Cause tells why, once Done is closed: ReasonOOM or ReasonError.
	Cause() Reason
	// Close drops this process's connections; the machine runs on.
	Close() error
}
