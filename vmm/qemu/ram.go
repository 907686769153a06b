package qemu

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/eqvps/eqvps/vmm"
)

const (
	// maxFirmware bounds the firmware's memory; it has 64 KiB.
	maxFirmware = 16 << 20
	// firmwareEnd is the guest address at which the firmware's memory ends.
	firmwareEnd = 1 << 32
	// maxMaps bounds what is read of a process's table of mappings.
	maxMaps = 16 << 20
)

// ram is where a machine's memory lies in its monitor.
//
// The addresses under which its pages are known count first through the
// guest's main memory, as it lies in its file, and then on through the
// firmware's. That one is not in the file, the firmware writes to it (it leaves
// ACPI tables there), and a monitor that waits for a device state leaves it empty.
type ram struct {
	main, firmware region
}

// region is one piece of guest memory.
type region struct {
	address uint64 // of its first page
	host    uint64 // where it begins in the monitor's address space
	size    uint64 // bytes, whole pages
}

func (r region) end() uint64 { return r.address + r.size }

// contains tells whether a run of size bytes at address lies in the region.
func (r region) contains(address, size uint64) bool {
	return address >= r.address && address <= r.end() && size <= r.end()-address
}

// findRAM asks a monitor for its memory. It refuses one that has more than is
// known here, which would be lost: a device state holds no memory at all.
func findRAM(c *conversation) (ram, error) {
	text, err := c.human("info ramblock")
	if err != nil {
		return ram{}, err
	}
	sizes, err := parseBlocks(text)
	if err != nil {
		return ram{}, err
	}
	r := ram{main: region{size: sizes["ram"]}, firmware: region{size: sizes["pc.bios"]}}
	if r.main.size == 0 || r.main.size > vmm.MaxMemoryMiB<<20 || r.firmware.size > maxFirmware {
		return ram{}, fmt.Errorf("the monitor tells of %d bytes of memory and %d of firmware", r.main.size, r.firmware.size)
	}
	r.firmware.address = r.main.size
	if r.main.host, err = hostAddress(c, 0); err != nil {
		return ram{}, err
	}
	r.firmware.host, err = hostAddress(c, firmwareEnd-r.firmware.size)
	return r, err
}

// parseBlocks reads the table of a monitor's memory: name, page size, its
// unit, offset, bytes used, bytes in all, and in later versions more. What is named
// /rom@ is made from the command line, and no guest can write it.
func parseBlocks(text string) (map[string]uint64, error) {
	sizes := make(map[string]uint64)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for _, line := range lines[1:] {
		fields := strings.Fields(line)
		if len(fields) < 6 {
			return nil, fmt.Errorf("the monitor describes its memory with %q", line)
		}
		name := fields[0]
		if strings.HasPrefix(name, "/rom@") {
			continue
		}
		size, err := strconv.ParseUint(fields[5], 0, 64)
		if err != nil || size%vmm.PageSize != 0 {
			return nil, fmt.Errorf("the monitor describes its memory with %q", line)
		}
		if name != "ram" && name != "pc.bios" {
			return nil, fmt.Errorf("the monitor has memory named %q, which cannot be put away", name)
		}
		sizes[name] = size
	}
	return sizes, nil
}

// hostAddress is where a guest's physical address lies in the monitor.
func hostAddress(c *conversation, guest uint64) (uint64, error) {
	text, err := c.human(fmt.Sprintf("gpa2hva %#x", guest))
	if err != nil {
		return 0, err
	}
	_, tail, _ := strings.Cut(text, ") is ")
	host, err := strconv.ParseUint(strings.TrimSpace(tail), 0, 63)
	if err != nil || host%vmm.PageSize != 0 {
		return 0, fmt.Errorf("the monitor says of the guest's address %#x: %q", guest, text)
	}
	return host, nil
}

// human runs a command of the monitor's language for people, which knows some
// that the machine protocol lacks.
func (c *conversation) human(line string) (string, error) {
	reply, err := c.do(&command{Execute: "human-monitor-command", Arguments: map[string]any{"command-line": line}})
	if err != nil {
		return "", err
	}
	var text string
	if err := json.Unmarshal(reply, &text); err != nil {
		return "", fmt.Errorf("%s: %w", line, err)
	}
	return text, nil
}

// mapping is the file that a monitor has mapped as its guest's main memory.
type mapping struct {
	shared bool   // what the guest writes goes to the file
	path   string // as the kernel tells it
	link   string // opens the file, whatever its path
}

// inMemory tells whether the file is one of no file system.
func (m mapping) inMemory() bool { return strings.HasPrefix(m.path, "/memfd:") }

// findMapping looks up a region among the mappings of a process. The kernel's
// word counts: the whole region must be one file, from its beginning on.
func findMapping(pid int, r region) (mapping, error) {
	f, err := os.Open(procFile(pid, "maps"))
	if err != nil {
		return mapping{}, vanished(err)
	}
	defer f.Close()
	var found mapping
	var file string
	at := r.host // the kernel sorts by address
	for in := bufio.NewScanner(io.LimitReader(f, maxMaps)); in.Scan() && at < r.host+r.size; {
		var begin, end, offset uint64
		var perms, device, inode string
		if _, err := fmt.Sscanf(in.Text(), "%x-%x %s %x %s %s", &begin, &end, &perms, &offset, &device, &inode); err != nil {
			return mapping{}, fmt.Errorf("%s: %w", f.Name(), err)
		}
		if end <= at {
			continue
		}
		first := at == r.host
		if first {
			found.shared = strings.HasSuffix(perms, "s")
			found.link = procFile(pid, fmt.Sprintf("map_files/%x-%x", begin, end))
			if fields := strings.Fields(in.Text()); len(fields) > 5 {
				found.path = fields[5]
			}
			file = device + " " + inode
		}
		if begin > at || inode == "0" || device+" "+inode != file || offset+(at-begin) != at-r.host ||
			strings.HasSuffix(perms, "s") != found.shared {
			return mapping{}, errors.New("the monitor has not mapped one file as the guest's memory")
		}
		at = end
	}
	switch {
	case at == r.host:
		return mapping{}, fmt.Errorf("the guest's memory is mapped nowhere: %w", errHungUp)
	case at < r.host+r.size:
		return mapping{}, errors.New("the monitor has not mapped the whole of the guest's memory")
	}
	return found, nil
}
