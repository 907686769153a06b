package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest"
	"github.com/eqvps/eqvps/network"
	"github.com/eqvps/eqvps/vmm"
)

// restoreTimeout bounds a restore, which takes a tenth of a second on an idle
// host.
const restoreTimeout = 30 * time.Second

// start is a machine being started: Destroy cancels it and waits.
type start struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// Start makes a fresh machine from its template.
func (n *Node) Start(ctx context.Context, m eqvps.StartMachine) (eqvps.Machine, error) {
	if err := n.checkDisk(); err != nil {
		return nil, err
	}
	ctx, done := n.beginStart(ctx, m.ID)
	vm, err := n.start(ctx, m)
	done()
	if err != nil {
		if derr := n.Destroy(context.WithoutCancel(ctx), m.ID); derr != nil {
			n.log.Error("cannot undo a start; will be tried again", "machine", m.ID, "err", derr)
		}
		return nil, startError(err)
	}
	return vm, nil
}

func (n *Node) beginStart(ctx context.Context, id string) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	s := &start{cancel: cancel, done: make(chan struct{})}
	n.mu.Lock()
	n.starting[id] = s
	n.mu.Unlock()
	return ctx, func() {
		n.mu.Lock()
		delete(n.starting, id)
		n.mu.Unlock()
		close(s.done)
	}
}

// start is the fast path: place, restore, connect, renew.
func (n *Node) start(ctx context.Context, m eqvps.StartMachine) (*machine, error) {
	t, err := n.template(ctx, m.Image, m.Tariff)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	p, err := n.place(ctx, m.ID, t.image.ID, m.Tariff)
	if err != nil {
		return nil, err
	}
	spec, err := n.restoreSpec(p, t)
	if err != nil {
		return nil, err
	}
	defer spec.State.Close()
	var vm vmm.Machine
	err = n.do("start.restore", func() (err error) {
		vm, err = n.monitor.Restore(ctx, spec)
		return err
	})
	if err != nil {
		return nil, err
	}
	mc := &machine{node: n, record: p.record, slot: p.slot, vm: vm}
	if err := n.bringUp(ctx, mc, m, p); err != nil {
		mc.Close()
		return nil, err
	}
	return mc, nil
}

// bringUp connects to a restored guest and makes it one of its own: until
// Renew has returned it is a twin of every other restored machine.
func (n *Node) bringUp(ctx context.Context, mc *machine, m eqvps.StartMachine, p *placed) error {
	h := mc.vm.Handle()
	p.record.Handle = &h
	if err := n.do("start.record", func() error { return p.record.write(p.dir) }); err != nil {
		return err
	}
	return n.do("start.renew", func() (err error) {
		mc.client, err = guest.Renew(ctx, mc.vm.DialGuest, guest.Identity{Hostname: hostName(m.ID), Env: m.Env})
		if err != nil {
			return consoleError(ctx, mc.vm, fmt.Errorf("the restored guest does not answer: %w", err))
		}
		return nil
	})
}

// placed is what a machine has before its monitor runs.
type placed struct {
	dir    string
	record *record
	slot   *network.Slot
}

// place makes a machine's folder, record, cgroup and network slot, in this
// order: the record first. On an error the caller calls Destroy.
func (n *Node) place(ctx context.Context, id, imageID string, t eqvps.Tariff) (*placed, error) {
	p := &placed{dir: n.machineDir(id), record: &record{ID: id, Image: imageID}}
	err := n.do("place.folder", func() error { return os.MkdirAll(filepath.Join(p.dir, runDir), 0o700) })
	if err != nil {
		return nil, err
	}
	if err := n.do("place.cgroup", func() error { return n.group(id).create(t) }); err != nil {
		return nil, err
	}
	err = n.do("place.slot", func() (err error) {
		p.slot, err = n.slots.Get(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	p.record.Slot = &slotRef{Index: p.slot.Index(), Claimed: p.slot.Claimed()}
	// A slot that no record names is freed at the next start of the server.
	if err := n.do("place.record", func() error { return p.record.write(p.dir) }); err != nil {
		p.slot.Close(context.WithoutCancel(ctx))
		return nil, err
	}
	return p, nil
}

// restoreSpec copies the template's disk for a machine and says what its
// monitor needs. The caller closes Spec.State.
func (n *Node) restoreSpec(p *placed, t *template) (vmm.Spec, error) {
	upper := filepath.Join(p.dir, upperFile)
	err := n.do("start.disk", func() error { return copyDisk(upper, filepath.Join(t.dir, upperFile)) })
	if err != nil {
		return vmm.Spec{}, err
	}
	state, err := os.Open(filepath.Join(t.dir, stateFile))
	if err != nil {
		return vmm.Spec{}, err
	}
	spec := t.spec(p.record.ID, filepath.Join(p.dir, runDir), upper, p.slot)
	spec.Memory, spec.State = t.memory, state
	spec.OnSpawn = n.group(p.record.ID).add
	return spec, nil
}
