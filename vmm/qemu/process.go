package qemu

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/eqvps/eqvps/vmm"
	"golang.org/x/sys/unix"
)

// process is a running monitor, whether or not it is a child of this process.
// It is held by a pidfd, which names the process and not its number.
type process struct {
	pid   int
	start uint64 // clock ticks since host boot
	pidfd *os.File
	done  chan struct{}
}

// watchProcess takes over the pidfd and watches for the end of the process.
// reap, if not nil, is called once it has ended and before done is closed.
func watchProcess(pid, pidfd int, reap func()) (*process, error) {
	// A non-blocking descriptor is watched by the runtime's poller: one parked
	// goroutine per machine and no thread.
	if err := unix.SetNonblock(pidfd, true); err != nil {
		unix.Close(pidfd)
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	p := &process{pid: pid, pidfd: os.NewFile(uintptr(pidfd), "pidfd"), done: make(chan struct{})}
	conn, err := p.pidfd.SyscallConn()
	if err != nil {
		p.pidfd.Close()
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	if p.start, err = startTime(pid); err != nil {
		p.pidfd.Close()
		return nil, err
	}
	go func() {
		conn.Read(func(fd uintptr) bool { return exited(int(fd)) })
		if reap != nil {
			reap()
		}
		close(p.done)
		p.pidfd.Close()
	}()
	return p, nil
}

// exited tells whether the process of a pidfd has ended.
func exited(pidfd int) bool {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// kill ends the process at once and waits until it is gone.
func (p *process) kill(ctx context.Context) error {
	conn, err := p.pidfd.SyscallConn()
	if err == nil {
		// Fails when the process ended in the meantime, which done tells.
		conn.Control(func(fd uintptr) { unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("kill process %d: %w", p.pid, context.Cause(ctx))
	}
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// cpuTime reads the processor-time clock that the kernel keeps for every
// process: all threads, ended ones included, in nanoseconds.
func (p *process) cpuTime() (time.Duration, error) {
	const allThreads = 2 // the clock's kind in the low bits of its number
	var ts unix.Timespec
	err := unix.ClockGettime(int32(^p.pid)<<3|allThreads, &ts)
	if p.ended() {
		return 0, vmm.ErrGone
	}
	if err != nil {
		return 0, fmt.Errorf("read the processor time of process %d: %w", p.pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// startTime is field 22 of /proc/PID/stat.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(procFile(pid, "stat"))
	if err != nil {
		return 0, vmm.ErrGone
	}
	// Field 2 is the program's name in parentheses and may hold anything.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("%s is not in the known format", procFile(pid, "stat"))
	}
	return strconv.ParseUint(string(fields[22-3]), 10, 64)
}

func procFile(pid int, name string) string {
	return "/proc/" + strconv.Itoa(pid) + "/" + name
}
