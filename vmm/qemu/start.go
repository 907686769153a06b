package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/eqvps/eqvps/vmm"
	"golang.org/x/sys/unix"
)

const (
	// maxMessages bounds what a monitor may print on its standard error.
	maxMessages = 64 << 10
	// killTimeout bounds the wait for a killed process: the kernel frees its
	// memory meanwhile.
	killTimeout = 10 * time.Second
)

// Boot starts a machine from its kernel; see vmm.Monitor.
func (m *Monitor) Boot(ctx context.Context, spec vmm.Spec) (vmm.Machine, error) {
	h, err := m.prepare(ctx, spec)
	if err != nil {
		return nil, err
	}
	memory, err := createMemory(spec)
	if err != nil {
		return nil, err
	}
	defer memory.Close()
	machine, err := m.boot(ctx, h, spec, memory)
	if err != nil {
		if spec.MemoryFile != "" {
			os.Remove(spec.MemoryFile)
		}
		return nil, fmt.Errorf("boot machine %s: %w", spec.ID, err)
	}
	return machine, nil
}

func (m *Monitor) boot(ctx context.Context, h *host, spec vmm.Spec, memory *os.File) (vmm.Machine, error) {
	args, err := machineArgs(h, spec, true)
	if err != nil {
		return nil, err
	}
	return start(ctx, h, spec, append(args, bootArgs(h, spec)...), []*os.File{memory},
		func(c *conversation, _ *process) error {
			_, err := c.do(capabilities(), &command{Execute: "cont"})
			return err
		})
}

// createMemory makes the file that becomes the guest's memory. It never takes
// an existing one, which another machine may have mapped.
func createMemory(spec vmm.Spec) (*os.File, error) {
	if spec.MemoryFile == "" {
		return emptyMemory(spec)
	}
	f, err := os.OpenFile(spec.MemoryFile, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create the memory file of machine %s: %w", spec.ID, err)
	}
	if err := f.Truncate(int64(spec.MemoryMiB) << 20); err != nil {
		f.Close()
		os.Remove(spec.MemoryFile)
		return nil, fmt.Errorf("create the memory file of machine %s: %w", spec.ID, err)
	}
	return f, nil
}

// emptyMemory makes memory that lies in no file. A machine shares it with
// nobody, and yet maps it shared: a private page would lie on top of one of the
// file, and both would cost memory.
func emptyMemory(spec vmm.Spec) (*os.File, error) {
	fd, err := unix.MemfdCreate("guest-memory", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make the memory of machine %s: %w", spec.ID, err)
	}
	f := os.NewFile(uintptr(fd), "guest-memory")
	if err := f.Truncate(int64(spec.MemoryMiB) << 20); err != nil {
		f.Close()
		return nil, fmt.Errorf("make the memory of machine %s: %w", spec.ID, err)
	}
	return f, nil
}

// Restore starts a machine from a snapshot; see vmm.Monitor. Spec.Memory
// should be sealed (see vmm.SealMemory): QEMU opens it for writing even though
// it maps it privately. Spec.State may be shared by concurrent calls.
func (m *Monitor) Restore(ctx context.Context, spec vmm.Spec) (vmm.Machine, error) {
	h, err := m.prepare(ctx, spec)
	if err != nil {
		return nil, err
	}
	machine, err := m.restore(ctx, h, spec)
	if err != nil {
		return nil, fmt.Errorf("restore machine %s: %w", spec.ID, err)
	}
	return machine, nil
}

func (m *Monitor) restore(ctx context.Context, h *host, spec vmm.Spec) (vmm.Machine, error) {
	if spec.State == nil || spec.Memory == nil && spec.Pages == nil {
		return nil, errors.New("a restore needs both the memory and the state of a snapshot")
	}
	state, err := reopen(spec.State)
	if err != nil {
		return nil, fmt.Errorf("open the device state: %w", err)
	}
	defer state.Close()
	memory := spec.Memory
	if memory == nil {
		if memory, err = emptyMemory(spec); err != nil {
			return nil, err
		}
		defer memory.Close()
	}
	args, err := machineArgs(h, spec, spec.Memory == nil)
	if err != nil {
		return nil, err
	}
	args = append(args, restoreArgs(spec.Pages != nil)...)
	return start(ctx, h, spec, args, []*os.File{memory, state}, func(c *conversation, p *process) error {
		if spec.Pages == nil {
			return load(c, capabilities(), migrationCapabilities())
		}
		if err := fill(c, p, spec.Pages); err != nil {
			return err
		}
		return load(c)
	})
}

// fill writes the pages of a suspended machine into the memory of a monitor
// that waits for the device state. It comes before the state: devices look into
// memory while they are loaded.
func fill(c *conversation, p *process, pages func(put vmm.PageFunc) error) error {
	if _, err := c.do(capabilities()); err != nil {
		return err
	}
	r, err := findRAM(c)
	if err != nil {
		return err
	}
	memory, err := openMemory(p, r)
	if err != nil {
		return err
	}
	defer memory.file.Close()
	return c.untimed(func() error {
		var refused error
		err := pages(func(address uint64, pages []byte) error {
			if c.ctx.Err() != nil {
				return context.Cause(c.ctx)
			}
			err := memory.put(address, pages)
			if refused == nil {
				refused = err
			}
			return err
		})
		if err == nil {
			err = refused
		}
		return err
	})
}

// load lets a waiting monitor read the device state and run the machine. All
// is written at once; the answers that matter are a refusal and the event that
// tells that the guest runs.
func load(c *conversation, first ...*command) error {
	err := c.send(append(first,
		&command{Execute: "migrate-incoming", Arguments: map[string]any{"uri": fmt.Sprintf("fd:%d", fdState)}})...)
	if err != nil {
		return err
	}
	for {
		msg, err := c.read()
		if err != nil {
			return err
		}
		if msg.Error != nil {
			return msg.Error
		}
		if msg.Event == "RESUME" {
			return nil
		}
	}
}

// prepare checks everything that can be checked before anything is made.
func (m *Monitor) prepare(ctx context.Context, spec vmm.Spec) (*host, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	return m.inspect(ctx)
}

// start spawns a monitor and holds the conversation that makes its guest run.
// On failure nothing is left and the error ends with what the monitor said.
func start(ctx context.Context, h *host, spec vmm.Spec, args []string, files []*os.File, run func(*conversation, *process) error) (_ vmm.Machine, err error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	defer func() {
		if err != nil {
			removeSockets(spec.Dir)
		}
	}()
	messages, err := messageFile()
	if err != nil {
		return nil, err
	}
	defer messages.Close()
	proc, err := spawn(h, spec, args, files, messages)
	if err != nil {
		return nil, err
	}
	if err := introduce(ctx, spec, proc, run); err != nil {
		hungUp := errors.Is(err, errHungUp)
		if hungUp {
			// Its last words come before its end.
			select {
			case <-proc.done:
			case <-time.After(time.Second):
			}
		}
		text := lastMessages(messages)
		killCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
		defer cancel()
		err = errors.Join(err, proc.kill(killCtx))
		if text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return nil, err
	}
	return newMachine(vmm.Handle{
		Monitor: Name, ID: spec.ID, Dir: spec.Dir, PID: proc.pid, StartTime: proc.start,
	}, proc), nil
}

// introduce tells the caller of the new process and then talks to it.
func introduce(ctx context.Context, spec vmm.Spec, p *process, run func(*conversation, *process) error) error {
	if spec.OnSpawn != nil {
		if err := spec.OnSpawn(p.pid); err != nil {
			return err
		}
	}
	c, err := converse(ctx, spec.Dir)
	if err != nil {
		return err
	}
	defer c.close()
	return run(c, p)
}

// spawn starts QEMU in the network namespace of the spec. The process is its
// own session, holds nothing of ours but the given files, and lives on when
// this process ends.
func spawn(h *host, spec vmm.Spec, args []string, files []*os.File, messages *os.File) (*process, error) {
	control, err := listen(spec.Dir, controlSocket)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	guest, err := listen(spec.Dir, guestSocket)
	if err != nil {
		return nil, err
	}
	defer guest.Close()

	pidfd := -1
	cmd := exec.Command(h.path, args...)
	cmd.Dir = "/"
	cmd.Env = []string{vmm.DirVariable + "=" + spec.Dir} // and nothing of ours
	cmd.Stderr = messages
	cmd.ExtraFiles = append([]*os.File{control, guest}, files...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	namespace := ""
	if spec.Network != nil {
		namespace = spec.Network.Namespace
	}
	if err := inNamespace(namespace, cmd.Start); err != nil {
		return nil, err
	}
	if pidfd < 0 {
		cmd.Process.Kill()
		cmd.Wait()
		return nil, errors.New("this kernel knows no pidfd: run Linux 5.4 or later")
	}
	proc, err := watchProcess(cmd.Process.Pid, pidfd, func() { cmd.Wait() })
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return nil, err
	}
	return proc, nil
}

// inNamespace calls f on a thread inside a network namespace, which children
// started by f inherit. The thread is thrown away afterwards: a thread that
// failed to come back would take other goroutines into the namespace.
func inNamespace(path string, f func() error) error {
	if path == "" {
		return f()
	}
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open the network namespace: %w", err)
	}
	defer ns.Close()
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("enter the network namespace %s: %w", path, err)
			return
		}
		result <- f()
	}()
	return <-result
}

// messageFile is the standard error of a monitor: a piece of memory that
// cannot grow, so that a guest that makes its monitor complain for ever fills
// no disk, and that needs no reader.
func messageFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("messages", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make a file for the monitor's messages: %w", err)
	}
	f := os.NewFile(uintptr(fd), "messages")
	if err := f.Truncate(maxMessages); err != nil {
		f.Close()
		return nil, fmt.Errorf("make a file for the monitor's messages: %w", err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal the monitor's messages: %w", err)
	}
	return f, nil
}

// lastMessages is the end of what the monitor printed, as one line.
func lastMessages(f *os.File) string {
	const most = 1000
	b, _ := io.ReadAll(io.NewSectionReader(f, 0, maxMessages))
	b = bytes.TrimRight(b, "\x00")
	if len(b) > most {
		b = b[len(b)-most:]
	}
	text := strings.TrimSpace(strings.ToValidUTF8(string(b), "?"))
	return strings.ReplaceAll(text, "\n", "; ")
}

func removeSockets(dir string) {
	for _, name := range []string{controlSocket, guestSocket} {
		os.Remove(filepath.Join(dir, name))
	}
}
