package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest"
	"github.com/eqvps/eqvps/vmm"
)

// Resume brings a paused machine back as it was: see eqvps.Pauser.
//
// Paused memory is used once. A process that has gone on from it twice has used
// the same randomness twice, e.g. the same nonce for two messages, and its disk
// has changed meanwhile. What counts is when the sandbox's processes go on,
// which is when the guest takes its identity (guest.Renew): until then the
// restored guest waits at its gate with all of them frozen, a twin that has done
// nothing. So the folder "paused" is renamed, for good, after the restore and
// right before the identity is sent:
//
//   - whatever fails before, a crash included, leaves "paused": the twin is
//     ended, and the machine can be resumed again;
//   - a failure to send the identity, or the guest's refusal, takes the name
//     back after the twin's end is certain;
//   - if the identity was sent and no answer came, the processes may have gone
//     on: the memory is lost, and the disk is left;
//   - after a crash in between, the name says "resuming". If the machine still
//     runs, it is taken back; its memory is not used again.
func (n *Node) Resume(ctx context.Context, m eqvps.StartMachine) (eqvps.Machine, error) {
	return n.bringBack(ctx, m, n.resume)
}

// bringBack is what Resume and Reboot have in common.
func (n *Node) bringBack(ctx context.Context, m eqvps.StartMachine, how func(context.Context, eqvps.StartMachine) (*machine, error)) (eqvps.Machine, error) {
	if err := n.checkDisk(); err != nil {
		return nil, err
	}
	ctx, done, err := n.begin(ctx, m.ID)
	if err != nil {
		return nil, startError(err)
	}
	ctx, cancel := context.WithTimeout(ctx, resumeTimeout)
	defer cancel()
	if mc := n.tracked(m.ID); mc != nil {
		mc.Close() // its channel would keep any other waiting
	}
	if err = n.capacity.take(m.ID, claimOf(m.Tariff)); err != nil {
		done()
		return nil, err
	}
	mc, err := how(ctx, m)
	done()
	if err != nil {
		n.capacity.note(m.ID, claimOf(m.Tariff).resting()) // its disk is still there
		return nil, startError(err)
	}
	n.track(m.ID, mc)
	n.dropUsed(n.machineDir(m.ID))
	return mc, nil
}

func (n *Node) resume(ctx context.Context, m eqvps.StartMachine) (*machine, error) {
	dir := n.machineDir(m.ID)
	r, err := readRecord(dir)
	if err != nil {
		return nil, err
	}
	if !isPaused(dir) {
		return n.takeBack(ctx, m, r, dir)
	}
	p, err := readPaused(dir)
	if err != nil {
		return nil, err
	}
	if r == nil {
		r = &record{Name: m.ID} // it was not synced
	}
	r.Image, r.Base, r.Claim = p.Image, &p.Base, claimOf(m.Tariff)
	// Of a pause, or a resume, that died. No more of it than a twin at its gate.
	if err := n.clear(ctx, "resume.rest", r, dir); err != nil {
		return nil, err
	}
	mc, err := n.resumeFrom(ctx, m, r, dir)
	if err == nil {
		return mc, nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if cerr := n.clear(undo, "resume.undo", r, dir); cerr != nil {
		return nil, errors.Join(err, cerr)
	}
	switch {
	case isPaused(dir):
	case errors.Is(err, guest.ErrIdentitySent):
		err = errors.Join(err, dropDirs(dir, pausedUsed))
	default:
		err = errors.Join(err, moveDir(dir, pausedUsed, pausedDir))
	}
	return nil, err
}

// resumeFrom restores a machine from what is paused of it. On an error the
// caller frees what there is.
func (n *Node) resumeFrom(ctx context.Context, m eqvps.StartMachine, r *record, dir string) (*machine, error) {
	if err := n.fits(*r.Base); err != nil {
		return nil, err
	}
	img, err := n.images.Get(r.Image)
	if err != nil {
		return nil, err
	}
	if img.Digest() != r.Base.Key.Image {
		return nil, fmt.Errorf("the image %s is not the one that the machine runs", r.Image)
	}
	t, err := n.baseTemplate(*r.Base, img)
	if err != nil {
		return nil, err
	}
	paused := filepath.Join(dir, pausedDir)
	state, err := anonymousFile("device-state")
	if err != nil {
		return nil, err
	}
	defer state.Close()
	err = n.do("resume.state", func() error {
		return unseal(filepath.Join(paused, kindState), m.Key, m.ID, kindState, func(from io.Reader) error {
			_, err := io.Copy(state, from)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	// Decrypting begins now: a monitor takes its time to come up.
	memory, err := openSealed(filepath.Join(paused, kindMemory), m.Key, m.ID, kindMemory)
	if err != nil {
		return nil, err
	}
	defer memory.Close()
	p, err := n.place(ctx, r, m.Tariff)
	if err != nil {
		return nil, err
	}
	spec := n.spec(p, r.Base.Key, img, filepath.Join(dir, upperFile))
	spec.State = state
	if t != nil {
		spec.Memory = t.memory
	}
	spec.Pages = func(put vmm.PageFunc) error { return readPages(memory, put) }
	mc := &machine{node: n, record: r, slot: p.slot}
	err = n.do("resume.restore", func() (err error) {
		mc.vm, err = n.monitor.Restore(ctx, spec)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := n.do("resume.record", func() error { return mc.writeHandle(dir) }); err != nil {
		mc.Close()
		return nil, err
	}
	if err := n.do("resume.use", func() error { return moveDir(dir, pausedDir, pausedUsed) }); err != nil {
		mc.Close()
		return nil, err
	}
	if err := n.renew(ctx, "resume.renew", mc, m); err != nil {
		return nil, err
	}
	return mc, nil
}

// takeBack finds the machine of a pause or resume that was cut short, and lets
// it go on.
func (n *Node) takeBack(ctx context.Context, m eqvps.StartMachine, r *record, dir string) (*machine, error) {
	if r == nil || r.Handle == nil {
		return nil, fmt.Errorf("machine %s is neither paused nor running: %w", m.ID, vmm.ErrGone)
	}
	slot, err := n.openSlot(r.Slot)
	if err != nil {
		return nil, err
	}
	mc := &machine{node: n, record: r, slot: slot}
	err = n.do("resume.adopt", func() (err error) {
		mc.vm, err = n.monitor.Adopt(ctx, *r.Handle)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := n.do("resume.continue", func() error { return mc.vm.Continue(ctx) }); err != nil {
		return nil, errors.Join(err, mc.Close())
	}
	if err := n.renew(ctx, "resume.renew", mc, m); err != nil {
		if errors.Is(err, guest.ErrIdentitySent) {
			// It may go on with nobody to hear of it.
			err = errors.Join(err, mc.vm.Kill(context.WithoutCancel(ctx)))
		}
		return nil, err
	}
	return mc, nil
}

// dropUsed removes what is worth nothing beside a machine that runs. If that
// fails it still is not used. The files stay open until they have no name: then
// freeing what they take, which is most of the work, keeps nobody waiting.
func (n *Node) dropUsed(dir string) {
	for _, name := range []string{pausedUsed, pausedNew} {
		used := filepath.Join(dir, name)
		if _, err := os.Lstat(used); err != nil {
			continue
		}
		var held []*os.File
		for _, name := range sealedFiles {
			if f, err := os.Open(filepath.Join(used, name)); err == nil {
				held = append(held, f)
			}
		}
		err := n.do("resume.drop", func() error { return os.RemoveAll(used) })
		go func() {
			for _, f := range held {
				f.Close()
			}
		}()
		if err != nil {
			n.log.Error("cannot remove paused memory that was used", "folder", used, "err", err)
		}
	}
}
