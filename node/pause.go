package node

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest"
	"github.com/eqvps/eqvps/vmm"
)

// Bounds of the steps of a pause and a resume. The largest machines, all of
// whose memory is in use, take a minute.
const (
	pauseTimeout  = 5 * time.Minute
	resumeTimeout = 5 * time.Minute
	undoTimeout   = time.Minute
)

// pauseReserve is what a pause leaves free on the host's disk.
const pauseReserve = 256 << 20

// Pause puts a machine away: see eqvps.Pauser.
//
// The order of its steps is what makes it safe. Nothing counts until the folder
// "paused" has its name, for good; until then any failure ends with the folder
// gone and the machine running on. From then on the machine does not run again
// but from there, and what is left of it is only freed, now or by whoever comes
// next.
func (n *Node) Pause(ctx context.Context, id string, key []byte) error {
	ctx, done, err := n.begin(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, pauseTimeout)
	defer cancel()
	if err := checkKey(key); err != nil {
		return err
	}
	mc := n.tracked(id)
	if mc == nil {
		if mc, err = n.adopt(ctx, id); err != nil {
			return err
		}
		defer mc.Close()
	}
	if mc.record.Base == nil {
		return eqvps.WrapError(eqvps.CodeWrongMode, errors.New("only a persistent machine can be paused"))
	}
	if err := n.pause(ctx, id, mc, key); err != nil {
		return pauseError(err)
	}
	n.capacity.note(id, mc.record.Claim.resting())
	return nil
}

func pauseError(err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return &eqvps.Error{Code: eqvps.CodeCapacity, Cause: err, RetryAfter: 30 * time.Second,
			Message: "There is not enough room on the server's disk to pause the sandbox; it runs on."}
	}
	return err
}

func (n *Node) pause(ctx context.Context, id string, mc *machine, key []byte) error {
	dir := n.machineDir(mc.record.Name)
	if err := n.do("pause.space", func() error { return n.checkRoom(mc.vm) }); err != nil {
		return err
	}
	c, err := mc.hold(ctx)
	if err != nil {
		return err
	}
	if err := n.putAway(ctx, id, mc, c, dir, key); err != nil {
		return errors.Join(err, n.carryOn(id, mc, c, dir))
	}
	mc.Close()
	// It is paused whatever happens to the rest.
	if err := n.clear(context.WithoutCancel(ctx), "pause", mc.record, dir); err != nil {
		n.log.Error("something is left of a machine that is paused; will be freed later", "machine", id, "err", err)
	}
	return nil
}

// putAway freezes the guest and writes what it is to the folder "paused".
func (n *Node) putAway(ctx context.Context, id string, mc *machine, c *guest.Client, dir string, key []byte) error {
	tmp := filepath.Join(dir, pausedNew)
	err := n.do("pause.guest", func() error { return c.Suspend(ctx, mc.vm.DialGuest) })
	if err != nil {
		return err
	}
	err = n.do("pause.folder", func() error {
		return errors.Join(os.RemoveAll(tmp), os.Mkdir(tmp, 0o700))
	})
	if err != nil {
		return err
	}
	state, err := anonymousFile("device-state")
	if err != nil {
		return err
	}
	defer state.Close()
	err = n.do("pause.memory", func() error {
		return seal(filepath.Join(tmp, kindMemory), key, id, kindMemory, func(w io.Writer) error {
			pages := newPageWriter(w)
			err := mc.vm.Suspend(ctx, state, pages.put)
			if werr := pages.finish(); werr != nil {
				return werr // the reason of the other
			}
			return err
		})
	})
	if err != nil {
		return err
	}
	err = n.do("pause.state", func() error {
		return seal(filepath.Join(tmp, kindState), key, id, kindState, func(w io.Writer) error {
			_, err := io.Copy(w, io.NewSectionReader(state, 0, 1<<40))
			return err
		})
	})
	if err != nil {
		return err
	}
	err = n.do("pause.sync", func() error {
		p := pausedState{Image: mc.record.Image, Base: *mc.record.Base}
		return errors.Join(syncPath(filepath.Join(dir, upperFile)), p.write(tmp))
	})
	if err != nil {
		return err
	}
	return n.do("pause.publish", func() error { return moveDir(dir, pausedNew, pausedDir) })
}

// carryOn undoes a pause that failed. Whether the guest is suspended or the
// monitor stopped does not matter: what is not needed is harmless. A machine
// that cannot go on is ended, for its callers to see.
func (n *Node) carryOn(id string, mc *machine, c *guest.Client, dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	c.Close()
	err := n.do("pause.undo", func() error {
		// First and for good: with the disk changed, what was written would be
		// of another time.
		if err := dropDirs(dir, pausedDir, pausedNew); err != nil {
			return err
		}
		if err := mc.vm.Continue(ctx); err != nil {
			return err
		}
		same := identity(eqvps.StartMachine{ID: id})
		same.KeepEnv = true
		c, err := guest.Renew(ctx, mc.vm.DialGuest, same)
		if err != nil {
			return err
		}
		mc.release(c)
		return nil
	})
	if err != nil {
		err = errors.Join(err, mc.vm.Kill(ctx))
		mc.release(nil)
	}
	return err
}

// clear frees all that a machine has but its folder, its disk and what is
// paused of it, and records that.
func (n *Node) clear(ctx context.Context, why string, r *record, dir string) error {
	if err := n.stop(ctx, why, r, dir); err != nil {
		return err
	}
	return n.do(why+".record", func() error {
		// Sockets of a monitor that was not ended by us.
		if err := os.RemoveAll(filepath.Join(dir, runDir)); err != nil {
			return err
		}
		r.Slot, r.Handle = nil, nil
		return r.write(dir)
	})
}

// checkRoom refuses a pause for which the host's disk has no room, before the
// guest notices anything.
func (n *Node) checkRoom(vm vmm.Machine) error {
	var st unix.Statfs_t
	if err := unix.Statfs(n.dir, &st); err != nil {
		return err
	}
	free, need := st.Bavail*uint64(st.Bsize), privateBytes(vm.Handle().PID)+pauseReserve
	if free < need {
		return fmt.Errorf("a pause may take %d MiB, and %d MiB are free below %s: %w", need>>20, free>>20, n.dir, unix.ENOSPC)
	}
	return nil
}

// privateBytes is the memory that a process shares with no file: an upper bound
// of what its guest has changed. What cannot be read counts as nothing.
func privateBytes(pid int) (total uint64) {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		name, rest, _ := bytes.Cut(s.Bytes(), []byte(":"))
		if string(name) == "Anonymous" || string(name) == "Swap" {
			kib, _ := strconv.ParseUint(string(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte(" kB"))), 10, 64)
			total += kib << 10
		}
	}
	return total
}

// anonymousFile is a file that lies on no disk.
func anonymousFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}
