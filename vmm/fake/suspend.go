package fake

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/eqvps/eqvps/vmm"
)

// The device states of all machines.
const (
	snapshotState = "device state of an imagined machine\n"
	suspendState  = "device state of a suspended imagined machine\n"
)

// checkState refuses what this monitor did not write.
func checkState(spec vmm.Spec) error {
	if spec.State == nil || spec.Memory == nil && spec.Pages == nil {
		return errors.New("a restore needs both the memory and the state of a snapshot")
	}
	want := snapshotState
	if spec.Pages != nil {
		want = suspendState
	}
	state := make([]byte, len(want))
	if _, err := spec.State.ReadAt(state, 0); err != nil || string(state) != want {
		return errors.New("the device state is not one of this monitor")
	}
	return nil
}

// encode is how a guest's memory lies in the machine's: its length, and then it.
func encode(memory []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(memory))), memory...)
}

// load reads the guest's memory from the pages of a suspended machine and,
// where there are none, from the memory of the snapshot.
func load(spec vmm.Spec) ([]byte, error) {
	limit := uint64(spec.MemoryMiB) << 20
	all := base{spec.Memory}
	saved := make(map[uint64][]byte)
	if spec.Pages != nil {
		var failed error
		err := spec.Pages(func(address uint64, pages []byte) error {
			if err := checkRun(address, pages, limit); err != nil {
				failed = errors.Join(failed, err)
				return err
			}
			for ; len(pages) > 0; address, pages = address+vmm.PageSize, pages[vmm.PageSize:] {
				saved[address] = bytes.Clone(pages[:vmm.PageSize])
			}
			return nil
		})
		if err = errors.Join(err, failed); err != nil {
			return nil, err
		}
	}
	var memory []byte
	size := uint64(vmm.PageSize)
	for address := uint64(0); address < size; address += vmm.PageSize {
		page, ok := saved[address]
		if !ok {
			var err error
			if page, err = all.page(address); err != nil {
				return nil, err
			}
		}
		if memory = append(memory, page...); address == 0 {
			n := binary.LittleEndian.Uint64(page)
			if n > limit-8 {
				return nil, errors.New("the memory is not one of this monitor")
			}
			size = n + 8
		}
	}
	return memory[8:size], nil
}

// checkRun refuses pages that are not whole or not of this machine.
func checkRun(address uint64, pages []byte, limit uint64) error {
	size := uint64(len(pages))
	if address%vmm.PageSize != 0 || size%vmm.PageSize != 0 || address > limit || size > limit-address {
		return fmt.Errorf("%d bytes for the address %#x are no pages of this machine's memory", size, address)
	}
	return nil
}

// base is the memory that a machine was restored from, all zero without a file.
type base struct{ file *os.File }

func (b base) page(address uint64) ([]byte, error) {
	page := make([]byte, vmm.PageSize)
	if b.file == nil {
		return page, nil
	}
	_, err := b.file.ReadAt(page, int64(address))
	if err == io.EOF {
		err = nil // zeroes follow
	}
	return page, err
}

// Suspend stops the guest and passes on what differs from its snapshot.
func (m *machine) Suspend(ctx context.Context, state *os.File, page vmm.PageFunc) error {
	if err := m.begin(ctx, StepSuspend); err != nil {
		return err
	}
	m.guest.suspend()
	if err := m.save(ctx, state, page); err != nil {
		return fmt.Errorf("suspend machine %s: %w", m.guest.handle.ID, err)
	}
	return nil
}

func (m *machine) save(ctx context.Context, state *os.File, page vmm.PageFunc) error {
	if err := state.Truncate(0); err != nil {
		return err
	}
	if _, err := state.WriteAt([]byte(suspendState), 0); err != nil {
		return err
	}
	var before base
	if !m.guest.booted {
		before.file = m.guest.spec.Memory
	}
	memory := encode(m.guest.Memory())
	for address := 0; address < len(memory); address += vmm.PageSize {
		now := make([]byte, vmm.PageSize)
		copy(now, memory[address:])
		old, err := before.page(uint64(address))
		if err != nil {
			return err
		}
		if bytes.Equal(now, old) {
			continue
		}
		if err := page(uint64(address), now); err != nil {
			return err
		}
		select {
		case <-m.guest.done:
			return vmm.ErrGone
		case <-ctx.Done():
			return context.Cause(ctx)
		default:
		}
	}
	return nil
}

// Continue lets a suspended guest run on.
func (m *machine) Continue(ctx context.Context) error {
	if err := m.begin(ctx, StepContinue); err != nil {
		return err
	}
	m.guest.runOn()
	return nil
}
