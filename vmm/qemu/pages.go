package qemu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/eqvps/eqvps/vmm"
	"golang.org/x/sys/unix"
)

// memory is the guest's memory inside a monitor's process, open for reading
// and writing. It is touched only while the guest does not run.
type memory struct {
	ram  ram
	pid  int
	file *os.File // the process's address space
}

// openMemory takes hold of the memory of a monitor that was found to have it.
func openMemory(p *process, r ram) (*memory, error) {
	f, err := os.OpenFile(procFile(p.pid, "mem"), os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open the monitor's memory: %w", vanished(err))
	}
	// The file belongs to the process that has the number now.
	if started, err := startTime(p.pid); err != nil || started != p.start {
		f.Close()
		return nil, errHungUp
	}
	return &memory{ram: r, pid: p.pid, file: f}, nil
}

// vanished tells apart what the kernel answers for a process that ends.
func vanished(err error) error {
	for _, known := range []error{io.EOF, io.ErrUnexpectedEOF, os.ErrNotExist, unix.ESRCH, unix.EIO} {
		if errors.Is(err, known) {
			return errHungUp
		}
	}
	return err
}

// put writes pages back where they came from.
func (m *memory) put(address uint64, pages []byte) error {
	size := uint64(len(pages))
	for _, r := range []region{m.ram.main, m.ram.firmware} {
		if address%vmm.PageSize != 0 || size%vmm.PageSize != 0 || !r.contains(address, size) {
			continue
		}
		if _, err := m.file.WriteAt(pages, int64(r.host+(address-r.address))); err != nil {
			return fmt.Errorf("write the guest's memory: %w", vanished(err))
		}
		return nil
	}
	return fmt.Errorf("%d bytes for the address %#x are no pages of this machine's memory", size, address)
}

// changed passes on every page that may not be as it was in the snapshot.
func (m *memory) changed(ctx context.Context, page vmm.PageFunc) error {
	found, err := findMapping(m.pid, m.ram.main)
	if err != nil {
		return err
	}
	buf := make([]byte, vmm.MaxPages)
	run := func(r region, begin, end uint64) error {
		for begin < end {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			part := buf[:min(end-begin, uint64(len(buf)))]
			if _, err := m.file.ReadAt(part, int64(r.host+begin)); err != nil {
				return fmt.Errorf("read the guest's memory: %w", vanished(err))
			}
			if err := page(r.address+begin, part); err != nil {
				return err
			}
			begin += uint64(len(part))
		}
		return nil
	}
	runs := privatePages
	if found.shared {
		runs = func(m *memory, f func(begin, end uint64) error) error {
			return usedPages(found.link, m.ram.main.size, f)
		}
	}
	if err := runs(m, func(begin, end uint64) error { return run(m.ram.main, begin, end) }); err != nil {
		return err
	}
	return run(m.ram.firmware, 0, m.ram.firmware.size)
}

// One page in the kernel's table of a process's pages.
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
	pageOfFile  = 1 << 61 // also memory that is shared
)

// privatePages finds the pages of main memory that the guest, or whoever
// restored it, wrote: those that are the process's own. All others are as they
// are in the file below.
func privatePages(m *memory, run func(begin, end uint64) error) error {
	table, err := os.Open(procFile(m.pid, "pagemap"))
	if err != nil {
		return fmt.Errorf("open the monitor's page table: %w", vanished(err))
	}
	defer table.Close()
	const entry = 8                // bytes
	buf := make([]byte, entry<<16) // the entries of 256 MiB
	var begin, end uint64          // of the last run; empty if both are the same
	total := m.ram.main.size / vmm.PageSize
	for first := uint64(0); first < total; {
		n, err := table.ReadAt(buf[:min(uint64(len(buf)), (total-first)*entry)], int64((m.ram.main.host/vmm.PageSize+first)*entry))
		if n < entry {
			return fmt.Errorf("read the monitor's page table: %w", vanished(err))
		}
		for i := 0; i+entry <= n; i += entry {
			bits := binary.NativeEndian.Uint64(buf[i:])
			if bits&(pagePresent|pageSwapped) == 0 || bits&pageOfFile != 0 {
				continue
			}
			at := (first + uint64(i/entry)) * vmm.PageSize
			if at != end && begin != end {
				if err := run(begin, end); err != nil {
					return err
				}
			}
			if at != end || begin == end {
				begin = at
			}
			end = at + vmm.PageSize
		}
		first += uint64(n / entry)
	}
	if begin == end {
		return nil
	}
	return run(begin, end)
}

// usedPages finds the pages of a file that are no holes. It asks the file and
// not the process's page table, which forgets shared pages that were swapped out.
func usedPages(link string, size uint64, run func(begin, end uint64) error) error {
	f, err := os.Open(link)
	if err != nil {
		return fmt.Errorf("open the guest's memory: %w", vanished(err))
	}
	defer f.Close()
	for end := uint64(0); end < size; {
		begin, err := f.Seek(int64(end), unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return err
		}
		hole, err := f.Seek(begin, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		// File systems count in blocks of their own.
		from := uint64(begin) &^ (vmm.PageSize - 1)
		end = min((uint64(hole)+vmm.PageSize-1)&^(vmm.PageSize-1), size)
		if from >= end {
			return nil
		}
		if err := run(from, end); err != nil {
			return err
		}
	}
	return nil
}
