package qemu

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/eqvps/eqvps/vmm"
	"golang.org/x/sys/unix"
)

// Adopt finds a machine again by its process id and start time, or, when the
// handle has no process id, by its id and folder. Nothing is sent to the
// monitor, so that a hung one can be adopted and killed.
func (m *Monitor) Adopt(ctx context.Context, h vmm.Handle) (vmm.Machine, error) {
	if h.Monitor != Name {
		return nil, vmm.ErrGone
	}
	if h.PID != 0 {
		return adopt(h)
	}
	pids, err := processes()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if !isMonitor(pid, h) {
			continue
		}
		h.PID = pid
		if found, err := adopt(h); !errors.Is(err, vmm.ErrGone) {
			return found, err
		}
	}
	return nil, vmm.ErrGone
}

// adopt first takes hold of the process and then looks at what it holds: as
// long as that process has not ended, its number belongs to no other.
func adopt(h vmm.Handle) (vmm.Machine, error) {
	pidfd, err := unix.PidfdOpen(h.PID, 0)
	if err != nil {
		return nil, vmm.ErrGone
	}
	started, err := startTime(h.PID)
	if h.StartTime == 0 {
		h.StartTime = started
	}
	if err != nil || started != h.StartTime || !isMonitor(h.PID, h) || exited(pidfd) {
		unix.Close(pidfd)
		return nil, vmm.ErrGone
	}
	proc, err := watchProcess(h.PID, pidfd, nil)
	if err != nil {
		return nil, err
	}
	return newMachine(h, proc), nil
}

// isMonitor tells whether a process was started by this package for the
// machine of a handle. A process that has ended has no command line.
func isMonitor(pid int, h vmm.Handle) bool {
	args := procStrings(pid, "cmdline")
	for i := range args {
		if i > 0 && args[i-1] == "-name" && args[i] == h.ID {
			for _, variable := range procStrings(pid, "environ") {
				if variable == vmm.DirVariable+"="+h.Dir {
					return true
				}
			}
		}
	}
	return false
}

// procStrings reads a file of NUL-terminated strings.
func procStrings(pid int, name string) []string {
	b, err := os.ReadFile(procFile(pid, name))
	if err != nil {
		return nil
	}
	return strings.Split(string(b), "\x00")
}

func processes() ([]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
