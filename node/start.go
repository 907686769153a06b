package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
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

// start is a machine being started, paused or resumed: Destroy cancels it and
// waits.
type start struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// Start makes a fresh machine from its template.
func (n *Node) Start(ctx context.Context, m eqvps.StartMachine) (eqvps.Machine, error) {
	if err := n.checkDisk(); err != nil {
		return nil, err
	}
	ctx, done, err := n.begin(ctx, m.ID)
	if err != nil {
		return nil, startError(err)
	}
	vm, err := n.startClaimed(ctx, m)
	done()
	if err != nil {
		if derr := n.Destroy(context.WithoutCancel(ctx), m.ID); derr != nil {
			n.log.Error("cannot undo a start; will be tried again", "machine", m.ID, "err", derr)
		}
		return nil, startError(err)
	}
	return n.track(m.ID, vm), nil
}

// startClaimed starts a machine if the host has room for it.
func (n *Node) startClaimed(ctx context.Context, m eqvps.StartMachine) (*machine, error) {
	if err := n.capacity.take(m.ID, claimOf(m.Tariff)); err != nil {
		return nil, err
	}
	return n.start(ctx, m)
}

// begin registers what is done to a machine: one thing at a time, and Destroy
// can cut it short.
func (n *Node) begin(ctx context.Context, id string) (context.Context, func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &start{cancel: cancel, done: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.starting[id] != nil {
		cancel()
		return nil, nil, fmt.Errorf("machine %s is being started, paused or resumed", id)
	}
	n.starting[id] = s
	return ctx, func() {
		cancel()
		n.mu.Lock()
		delete(n.starting, id)
		over := len(n.starting) == 0
		n.mu.Unlock()
		close(s.done)
		if over {
			n.ready.startsOver()
		}
	}, nil
}

// busy reports whether a start is under way.
func (n *Node) busy() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.starting) > 0
}

// start is the fast path: a machine that stands by, or else one restored now,
// is given the identity of the sandbox.
func (n *Node) start(parent context.Context, m eqvps.StartMachine) (*machine, error) {
	t, err := n.template(parent, m.Image, m.Tariff)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(parent, restoreTimeout)
	defer cancel()
	// What a machine on standby has done to its disk is not all on the host's.
	if mc := n.takeReady(t, m); mc != nil {
		err := n.handOver(ctx, mc, m)
		if err == nil {
			return mc, nil
		}
		n.log.Warn("a machine that stood by is of no use", "machine", mc.record.Name, "err", err)
		mc.Close()
		if err := n.destroy(context.WithoutCancel(ctx), m.ID); err != nil {
			return nil, err
		}
	}
	mc, err := n.restoreFor(ctx, t, m)
	if err == nil || parent.Err() != nil {
		return mc, err
	}
	// Once more: a machine that fails to come up is rare, and a caller who is told
	// of it does just that. If none has ever come of this template, it may be
	// damaged and is made anew first.
	n.log.Warn("a restore failed and is tried again", "machine", m.ID, "template", t.key.String(), "err", err)
	if err := n.destroy(context.WithoutCancel(ctx), m.ID); err != nil {
		return nil, err
	}
	if !t.proved.Load() {
		if err := n.discard(t); err != nil {
			return nil, err
		}
	}
	if t, err = n.template(parent, m.Image, m.Tariff); err != nil {
		return nil, err
	}
	ctx, cancel = context.WithTimeout(parent, restoreTimeout)
	defer cancel()
	return n.restoreFor(ctx, t, m)
}

// restoreFor restores a machine for a sandbox.
func (n *Node) restoreFor(ctx context.Context, t *template, m eqvps.StartMachine) (*machine, error) {
	r := &record{Name: m.ID, Image: t.image.ID, Claim: claimOf(m.Tariff)}
	if m.Persistent {
		r.Base = &base{Key: t.key, Build: t.build}
	}
	mc, err := n.restore(ctx, r, t, m.Tariff)
	if err != nil {
		return nil, err
	}
	if err := n.renew(ctx, "start.renew", mc, m); err != nil {
		return nil, err
	}
	t.proved.Store(true)
	return mc, nil
}

// restore makes a machine of a template. It waits at its gate for an identity:
// until renew has returned it is a twin of every other restored machine. On an
// error the caller calls Destroy.
func (n *Node) restore(ctx context.Context, r *record, t *template, tariff eqvps.Tariff) (*machine, error) {
	p, err := n.place(ctx, r, tariff)
	if err != nil {
		return nil, err
	}
	spec, err := n.restoreSpec(p, t)
	if err != nil {
		return nil, err
	}
	defer spec.State.Close()
	mc := &machine{node: n, record: p.record, slot: p.slot}
	err = n.do("start.restore", func() (err error) {
		mc.vm, err = n.monitor.Restore(ctx, spec)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := n.do("start.record", func() error { return mc.writeHandle(p.dir) }); err != nil {
		mc.Close()
		return nil, err
	}
	return mc, nil
}

// writeHandle records the monitor of a machine.
func (m *machine) writeHandle(dir string) error {
	h := m.vm.Handle()
	m.record.Handle = &h
	return m.record.write(dir)
}

// renew makes a machine one of its own, for a sandbox, and connects to it. On
// an error its connections are closed.
func (n *Node) renew(ctx context.Context, label string, mc *machine, m eqvps.StartMachine) error {
	// Nothing of the sandbox runs before its policy is in force.
	if !m.Network.Open() {
		if err := n.do("start.network", func() error { return mc.slot.SetPolicy(m.Network) }); err != nil {
			mc.Close()
			return err
		}
	}
	return n.do(label, func() (err error) {
		mc.client, err = guest.Renew(ctx, mc.vm.DialGuest, identity(m))
		if err != nil {
			err = consoleError(ctx, mc.vm, fmt.Errorf("the guest does not answer: %w", err))
			mc.Close()
		}
		return err
	})
}

// identity is what makes a machine that of a sandbox. The machine's id follows
// from the sandbox's, so that it stays the same over pauses and reboots.
func identity(m eqvps.StartMachine) guest.Identity {
	sum := sha256.Sum256([]byte("machine " + m.ID))
	return guest.Identity{Hostname: hostName(m.ID), MachineID: hex.EncodeToString(sum[:16]), Env: m.Env}
}

// takeReady takes a machine on standby for a sandbox, if there is one for it.
func (n *Node) takeReady(t *template, m eqvps.StartMachine) *machine {
	if m.Persistent {
		return nil
	}
	return n.ready.take(t)
}

// placed is what a machine has before its monitor runs.
type placed struct {
	dir    string
	record *record
	slot   *network.Slot
}

// place makes a machine's folder, record, cgroup and network slot, in this
// order: the record first. On an error the caller frees what there is.
func (n *Node) place(ctx context.Context, r *record, t eqvps.Tariff) (*placed, error) {
	p := &placed{dir: n.machineDir(r.Name), record: r}
	err := n.do("place.folder", func() error { return os.MkdirAll(filepath.Join(p.dir, runDir), 0o700) })
	if err != nil {
		return nil, err
	}
	if err := n.do("place.cgroup", func() error { return n.group(r.Name).create(t) }); err != nil {
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
	if p.record.Base != nil {
		// The disk outlives a power cut, by its name too.
		err := n.do("start.sync", func() error { return errors.Join(syncPath(upper), syncPath(p.dir), syncPath(filepath.Dir(p.dir))) })
		if err != nil {
			return vmm.Spec{}, err
		}
	}
	state, err := os.Open(filepath.Join(t.dir, stateFile))
	if err != nil {
		return vmm.Spec{}, err
	}
	spec := n.spec(p, t.key, t.image, upper)
	spec.Memory, spec.State = t.memory, state
	return spec, nil
}
