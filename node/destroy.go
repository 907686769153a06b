package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/eqvps/eqvps/network"
	"github.com/eqvps/eqvps/vmm"
)

// Destroy ends a machine and frees everything it had, newest first; its folder
// goes last. Each step is harmless when its work is already done, so it can be
// called on a machine in any state, also one half made by a process that died.
func (n *Node) Destroy(ctx context.Context, id string) error {
	if err := n.cancelStart(ctx, id); err != nil {
		return err
	}
	// Of two that end the same machine at once, one does it for both.
	_, err, _ := n.destroying.Do(id, func() (any, error) { return nil, n.destroy(ctx, id) })
	if err == nil {
		n.capacity.drop(id)
	}
	return err
}

// destroy is Destroy for a machine whose start is over, or that of the caller.
func (n *Node) destroy(ctx context.Context, id string) error {
	link := n.machineDir(id)
	dir := resolve(link)
	if err := n.destroyIn(ctx, dir); err != nil {
		return err
	}
	return n.do("destroy.link", func() error {
		if link == dir {
			return nil
		}
		return ignoreAbsent(os.Remove(link))
	})
}

// destroyIn frees what the machine of a folder had, and then the folder.
func (n *Node) destroyIn(ctx context.Context, dir string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	r, err := readRecord(dir)
	if err != nil {
		return err
	}
	if r == nil {
		r = &record{Name: filepath.Base(dir)}
	}
	if err := n.stop(ctx, "destroy", r, dir); err != nil {
		return err
	}
	return n.do("destroy.folder", func() error { return os.RemoveAll(dir) })
}

// stop ends a machine and frees all it had but its folder. The labels of its
// steps begin with why.
func (n *Node) stop(ctx context.Context, why string, r *record, dir string) error {
	if err := n.do(why+".monitor", func() error { return n.killMonitor(ctx, r, dir) }); err != nil {
		return err
	}
	return errors.Join(
		n.do(why+".slot", func() error { return n.freeSlot(ctx, r.Slot) }),
		n.do(why+".cgroup", n.group(r.Name).remove),
	)
}

// cancelStart ends the start of a machine that is still under way and waits
// until nothing more of it is made.
func (n *Node) cancelStart(ctx context.Context, id string) error {
	n.mu.Lock()
	s := n.starting[id]
	n.mu.Unlock()
	if s == nil {
		return nil
	}
	s.cancel()
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// killMonitor ends the monitor that the record names, or, where its maker died
// before writing that down, the one that was started for it in its folder.
func (n *Node) killMonitor(ctx context.Context, r *record, dir string) error {
	h := r.Handle
	if h == nil {
		h = &vmm.Handle{Monitor: n.info.Monitor, ID: r.Name, Dir: filepath.Join(dir, runDir)}
	}
	vm, err := n.monitor.Adopt(ctx, *h)
	if errors.Is(err, vmm.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(vm.Kill(ctx), vm.Close())
}

// freeSlot removes a machine's network slot. One that is not whole is either
// still open here, or was left by an earlier process and freed by New.
func (n *Node) freeSlot(ctx context.Context, ref *slotRef) error {
	slot, err := n.openSlot(ref)
	if errors.Is(err, network.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	return slot.Close(ctx)
}

// openSlot returns the slot that a record names, or network.ErrGone.
func (n *Node) openSlot(ref *slotRef) (*network.Slot, error) {
	if ref == nil {
		return nil, network.ErrGone
	}
	slot, err := n.net.Open(ref.Index)
	if err != nil {
		return nil, err
	}
	if !slot.Claimed().Equal(ref.Claimed) {
		return nil, network.ErrGone // the index has found another user
	}
	return slot, nil
}
