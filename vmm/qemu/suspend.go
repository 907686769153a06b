package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/eqvps/eqvps/vmm"
	"golang.org/x/sys/unix"
)

const (
	// maxState bounds the device state that a monitor may write; it has some 20 KB.
	maxState = 64 << 20
	// minState is the least a monitor must write to be held, see statePipe.
	minState = 8 << 10
)

// Suspend stops the guest and passes on its device state and its pages.
//
// State and memory must be of one moment, and nothing promises that the devices
// of a stopped machine leave its memory alone, whatever comes from the host. So
// the monitor is held while its memory is read: it writes its state into a pipe
// of one page, which is emptied only afterwards.
func (m *machine) Suspend(ctx context.Context, state *os.File, page vmm.PageFunc) error {
	err := m.control(ctx, func(c *conversation) error {
		r, err := findRAM(c)
		if err != nil {
			return err
		}
		if _, err := c.do(&command{Execute: "stop"}); err != nil {
			return err
		}
		memory, err := openMemory(m.proc, r)
		if err != nil {
			return err
		}
		defer memory.file.Close()
		from, into, err := statePipe()
		if err != nil {
			return err
		}
		defer from.Close()
		save, err := sendSave(c, into)
		into.Close()
		if err != nil {
			return err
		}
		return receive(c, save, from, state, func() error { return memory.changed(c.ctx, page) })
	})
	if err != nil {
		return fmt.Errorf("suspend machine %s: %w", m.handle.ID, err)
	}
	return nil
}

// statePipe makes a pipe of one page. Whoever writes more into it than that
// waits for the reader.
func statePipe() (from, into *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("make a pipe for the device state: %w", err)
	}
	// Our end waits in the runtime's poller, the monitor's end in the monitor.
	_, err = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, vmm.PageSize)
	err = errors.Join(err, unix.SetNonblock(fds[0], true))
	from, into = os.NewFile(uintptr(fds[0]), "state"), os.NewFile(uintptr(fds[1]), "state")
	if err != nil {
		from.Close()
		into.Close()
		return nil, nil, fmt.Errorf("make a pipe for the device state: %w", err)
	}
	return from, into, nil
}

// sendSave tells the monitor to write its device state, and nothing of its
// memory, into a file. The name of the command tells who needed it first. With
// live it would take a stopped machine for one that moves away and give up its
// disks. The pipe goes by the descriptor's own name, because the monitor tries
// to truncate a file of a descriptor set.
func sendSave(c *conversation, into *os.File) (*command, error) {
	reply, err := c.do(&command{Execute: "add-fd", file: into})
	if err != nil {
		return nil, err
	}
	var added struct {
		FD int `json:"fd"`
	}
	if err := json.Unmarshal(reply, &added); err != nil {
		return nil, fmt.Errorf("add-fd: %w", err)
	}
	save := &command{Execute: "xen-save-devices-state", Arguments: map[string]any{
		"filename": fmt.Sprintf("/proc/self/fd/%d", added.FD), "live": false,
	}}
	return save, c.send(save)
}

// receive calls read while the monitor is held in the middle of its state, and
// then takes the state. The state ends with the monitor's reply: until its guest
// runs on, or for ever, the monitor keeps the pipe open.
func receive(c *conversation, save *command, from, state *os.File, read func() error) error {
	interrupt := func() { from.SetReadDeadline(time.Unix(1, 0)) }
	defer context.AfterFunc(c.ctx, interrupt)()
	replied := make(chan error, 1)
	go func() {
		_, err := c.await(save)
		replied <- err
		interrupt()
	}()
	first := make([]byte, 1)
	if _, err := from.Read(first); err != nil {
		select {
		case err := <-replied:
			return errors.Join(err, errors.New("the monitor wrote no device state"))
		case <-c.ctx.Done():
			return context.Cause(c.ctx)
		}
	}
	if err := c.untimed(read); err != nil {
		return err
	}
	if err := state.Truncate(0); err != nil {
		return err
	}
	to := io.NewOffsetWriter(state, 0)
	n, err := io.Copy(to, io.MultiReader(bytes.NewReader(first), io.LimitReader(from, maxState)))
	if err == nil && n > maxState {
		return fmt.Errorf("the monitor wrote a device state of more than %d bytes", maxState)
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	if err := <-replied; err != nil {
		return err
	}
	rest, err := drain(from)
	if err != nil {
		return err
	}
	if _, err := to.Write(rest); err != nil {
		return err
	}
	if n += int64(len(rest)); n < minState {
		return fmt.Errorf("the monitor wrote a device state of %d bytes", n)
	}
	return nil
}

// drain takes what is left in a state pipe, without waiting for more.
func drain(from *os.File) ([]byte, error) {
	conn, err := from.SyscallConn()
	if err != nil {
		return nil, err
	}
	rest := make([]byte, vmm.PageSize)
	n := 0
	control := conn.Control(func(fd uintptr) { n, err = unix.Read(int(fd), rest) })
	if errors.Is(err, unix.EAGAIN) {
		n, err = 0, nil
	}
	return rest[:max(n, 0)], errors.Join(control, err)
}

// Continue lets a stopped guest run on.
func (m *machine) Continue(ctx context.Context) error {
	err := m.control(ctx, func(c *conversation) error {
		_, err := c.do(&command{Execute: "cont"})
		return err
	})
	if err != nil {
		return fmt.Errorf("continue machine %s: %w", m.handle.ID, err)
	}
	return nil
}
