package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/vmm"
)

// Reboot starts a machine anew from the disk that an earlier one has left: see
// eqvps.Pauser. Its memory lies in no file, so that nothing of it reaches a disk
// in clear; it can be paused like one that was restored.
func (n *Node) Reboot(ctx context.Context, m eqvps.StartMachine) (eqvps.Machine, error) {
	return n.bringBack(ctx, m, n.reboot)
}

func (n *Node) reboot(ctx context.Context, m eqvps.StartMachine) (*machine, error) {
	dir := n.machineDir(m.ID)
	if _, err := os.Stat(filepath.Join(dir, upperFile)); err != nil {
		return nil, fmt.Errorf("the disk of machine %s is gone: %w", m.ID, err)
	}
	r, err := readRecord(dir)
	if err != nil {
		return nil, err
	}
	if r == nil {
		r = &record{Name: m.ID, Image: m.Image} // it was not synced
	}
	r.Claim = claimOf(m.Tariff)
	if err := n.clear(ctx, "reboot.rest", r, dir); err != nil {
		return nil, err
	}
	mc, err := n.rebootFrom(ctx, m, r, dir)
	if err == nil {
		return mc, nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	return nil, errors.Join(err, n.clear(undo, "reboot.undo", r, dir))
}

// rebootFrom boots a machine on its disk. On an error the caller frees what
// there is.
func (n *Node) rebootFrom(ctx context.Context, m eqvps.StartMachine, r *record, dir string) (*machine, error) {
	ref := r.Image
	if ref == "" {
		ref = defaultImage
	}
	img, err := n.images.Get(ref)
	if err != nil {
		return nil, err
	}
	// For good, and before the disk is another than the memory knows.
	err = n.do("reboot.drop", func() error { return dropDirs(dir, pausedDir, pausedUsed, pausedNew) })
	if err != nil {
		return nil, err
	}
	select {
	case n.bootQueue <- struct{}{}:
		defer func() { <-n.bootQueue }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	initrd := filepath.Join(dir, initrdFile)
	err = n.do("reboot.initrd", func() error {
		return errors.Join(ignoreAbsent(os.Remove(initrd)), n.writeInitrd(initrd, img))
	})
	defer os.Remove(initrd)
	if err != nil {
		return nil, err
	}
	r.Image, r.Base = img.ID, &base{Key: n.keyOf(img, m.Tariff)}
	p, err := n.place(ctx, r, m.Tariff)
	if err != nil {
		return nil, err
	}
	spec := n.spec(p, r.Base.Key, img, filepath.Join(dir, upperFile))
	spec.Kernel, spec.Initrd, spec.Cmdline = img.Kernel(), initrd, r.Base.Key.cmdline()
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	mc := &machine{node: n, record: r, slot: p.slot}
	err = n.do("reboot.boot", func() (err error) {
		mc.vm, err = n.monitor.Boot(ctx, spec)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := n.do("reboot.record", func() error { return mc.writeHandle(dir) }); err != nil {
		mc.Close()
		return nil, err
	}
	words := listen(ctx, mc.vm)
	err = n.renew(ctx, "reboot.renew", mc, m)
	said := words.last()
	if err != nil {
		return nil, fmt.Errorf("%w; before that its console said: %q", err, said)
	}
	return mc, nil
}

// listener keeps the end of what a booting guest prints: once its monitor is
// gone nobody can tell why.
type listener struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	text   string
}

// listenEvery is shorter than a guest that fails to come up lives.
const listenEvery = 250 * time.Millisecond

func listen(ctx context.Context, vm vmm.Machine) *listener {
	ctx, cancel := context.WithCancel(ctx)
	l := &listener{cancel: cancel}
	l.wg.Go(func() {
		tick := time.NewTicker(listenEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if text, err := vm.Console(ctx); err == nil {
				l.text = text
			}
		}
	})
	return l
}

// last ends the listening and returns at most the last 2000 bytes.
func (l *listener) last() string {
	l.cancel()
	l.wg.Wait()
	return l.text[max(0, len(l.text)-2000):]
}
