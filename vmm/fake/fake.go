// Package fake is a monitor without machines: it keeps every promise of
// package vmm in memory, so that what is built on it can be tested anywhere
// and broken step by step.
//
// A Monitor is also the host that its machines run on. To test a restart of
// the server, keep the Monitor and make everything else new: Adopt finds the
// machines that still run.
package fake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/eqvps/eqvps/vmm"
)

// Name is what Info and Handle call this monitor.
const Name = "fake"

// The steps that a Hook sees, in the order of a machine's life.
const (
	StepBoot     = "boot"     // nothing is there yet
	StepRestore  = "restore"  // nothing is there yet
	StepSpawn    = "spawn"    // the machine exists, OnSpawn comes next
	StepRun      = "run"      // OnSpawn was called, the guest runs next
	StepDial     = "dial"     // before a connection to the guest
	StepSnapshot = "snapshot" // before the guest is stopped
	StepSuspend  = "suspend"  // before the guest is stopped
	StepContinue = "continue" // before a suspended guest runs on
	StepConsole  = "console"
	StepCPUTime  = "cputime"
	StepAdopt    = "adopt"
	StepKill     = "kill" // before the machine ends
)

// Program is the software inside the machines. It is called once for each
// machine that boots or is restored and returns the function that serves one
// connection of the guest channel; connections are served one at a time.
type Program func(g *Guest) (serve func(conn net.Conn))

// Monitor is a host full of imagined machines. Its methods are safe for
// concurrent use; set the fields before the first machine starts.
type Monitor struct {
	Program Program
	// Hook, if not nil, is called before each step with the machine's id. It
	// may block until the context ends; an error makes the step fail.
	Hook func(ctx context.Context, step, id string) error

	mu       sync.Mutex
	lastPID  int
	machines map[int]*Guest // running, by process id
}

// New returns a host on which machines run the program.
func New(program Program) *Monitor {
	return &Monitor{Program: program, lastPID: firstPID, machines: make(map[int]*Guest)}
}

// firstPID lies above every process id of Linux, so that an imagined process
// is never taken for a real one.
const firstPID = 1 << 22

// Info always succeeds.
func (m *Monitor) Info(context.Context) (vmm.Info, error) {
	return vmm.Info{
		Monitor: Name, Version: "1", Accel: "fake", CPUModel: "fake",
		Reason:   "No machines at all, because this is the monitor for tests.",
		Warnings: []string{"Machines are imagined: nothing that is asked of them happens."},
	}, nil
}

// Machines returns the running machines' guests, in no order.
func (m *Monitor) Machines() []*Guest {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []*Guest
	for _, g := range m.machines {
		all = append(all, g)
	}
	return all
}

// Terminate ends a machine as `kill -9` would, behind the back of its owner.
func (m *Monitor) Terminate(h vmm.Handle) error {
	g := m.find(h)
	if g == nil {
		return vmm.ErrGone
	}
	g.end()
	return nil
}

// Boot starts a machine whose memory is empty.
func (m *Monitor) Boot(ctx context.Context, spec vmm.Spec) (vmm.Machine, error) {
	if err := m.step(ctx, StepBoot, spec.ID); err != nil {
		return nil, err
	}
	if err := m.check(spec, spec.Kernel, spec.Initrd); err != nil {
		return nil, err
	}
	if err := createMemory(spec); err != nil {
		return nil, fmt.Errorf("boot machine %s: %w", spec.ID, err)
	}
	nothing := func() ([]byte, error) { return nil, nil }
	machine, err := m.start(ctx, spec, nothing, true)
	if err != nil {
		os.Remove(spec.MemoryFile)
		return nil, fmt.Errorf("boot machine %s: %w", spec.ID, err)
	}
	return machine, nil
}

func createMemory(spec vmm.Spec) error {
	if spec.MemoryFile == "" {
		return nil
	}
	f, err := os.OpenFile(spec.MemoryFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(int64(spec.MemoryMiB)<<20), f.Close())
}

// Restore starts a machine with the memory of a snapshot or of a suspended
// machine.
func (m *Monitor) Restore(ctx context.Context, spec vmm.Spec) (vmm.Machine, error) {
	if err := m.step(ctx, StepRestore, spec.ID); err != nil {
		return nil, err
	}
	if err := m.check(spec); err != nil {
		return nil, err
	}
	if err := checkState(spec); err != nil {
		return nil, fmt.Errorf("restore machine %s: %w", spec.ID, err)
	}
	machine, err := m.start(ctx, spec, func() ([]byte, error) { return load(spec) }, false)
	if err != nil {
		return nil, fmt.Errorf("restore machine %s: %w", spec.ID, err)
	}
	return machine, nil
}

// check refuses what a real monitor would stumble over.
func (m *Monitor) check(spec vmm.Spec, files ...string) error {
	if err := spec.Validate(); err != nil {
		return err
	}
	files = append(files, spec.Dir)
	for _, d := range spec.Disks {
		files = append(files, d.Path)
	}
	if spec.Network != nil {
		files = append(files, spec.Network.Namespace)
	}
	for _, path := range files {
		if _, err := os.Stat(path); path != "" && err != nil {
			return fmt.Errorf("machine %s: %w", spec.ID, err)
		}
	}
	return nil
}

func (m *Monitor) start(ctx context.Context, spec vmm.Spec, load func() ([]byte, error), booted bool) (_ vmm.Machine, err error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	g := m.add(spec, booted)
	defer func() {
		if err != nil {
			g.end()
		}
	}()
	if err := m.step(ctx, StepSpawn, spec.ID); err != nil {
		return nil, err
	}
	if spec.OnSpawn != nil {
		if err := spec.OnSpawn(g.handle.PID); err != nil {
			return nil, err
		}
	}
	memory, err := load()
	if err != nil {
		return nil, err
	}
	g.SetMemory(memory)
	if err := m.step(ctx, StepRun, spec.ID); err != nil {
		return nil, err
	}
	serve := m.Program(g)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.serve = serve
	return &machine{guest: g}, nil
}

// step calls the hook, and fails when the context has ended.
func (m *Monitor) step(ctx context.Context, name, id string) error {
	if m.Hook != nil {
		if err := m.Hook(ctx, name, id); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// Adopt finds a running machine of this host.
func (m *Monitor) Adopt(ctx context.Context, h vmm.Handle) (vmm.Machine, error) {
	if err := m.step(ctx, StepAdopt, h.ID); err != nil {
		return nil, err
	}
	g := m.find(h)
	if g == nil {
		return nil, vmm.ErrGone
	}
	return &machine{guest: g}, nil
}

func (m *Monitor) add(spec vmm.Spec, booted bool) *Guest {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastPID++
	g := &Guest{
		monitor: m, spec: spec, booted: booted,
		handle: vmm.Handle{Monitor: Name, ID: spec.ID, Dir: spec.Dir, PID: m.lastPID, StartTime: uint64(m.lastPID)},
		turn:   make(chan struct{}, 1),
		done:   make(chan struct{}),
	}
	m.machines[m.lastPID] = g
	return g
}

func (m *Monitor) find(h vmm.Handle) *Guest {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range m.machines {
		wanted := h
		if wanted.PID == 0 {
			wanted.PID, wanted.StartTime = g.handle.PID, g.handle.StartTime
		}
		if wanted == g.handle {
			return g
		}
	}
	return nil
}

func (m *Monitor) remove(pid int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.machines, pid)
}
