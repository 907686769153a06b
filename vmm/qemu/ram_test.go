package qemu

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/eqvps/eqvps/vmm"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const blocks = `              Block Name    PSize              Offset               Used              Total
                     ram    4 KiB  0x0000000000000000 0x0000000010000000 0x0000000010000000
    /rom@etc/acpi/tables    4 KiB  0x0000000010040000 0x0000000000001000 0x0000000000200000
                 pc.bios    4 KiB  0x0000000010000000 0x0000000000010000 0x0000000000010000
`

// TestFindRAM asks monitors for their memory, some of which a guest took over.
func TestFindRAM(t *testing.T) {
	for name, test := range map[string]struct {
		blocks, host string // what the monitor says; host may hold the asked address
		want         string // an error
	}{
		"as it is":           {blocks, "Host virtual address for %s (ram) is 0x7f0000000000", ""},
		"as later versions":  {strings.ReplaceAll(blocks, "0000\n", "0000  0x00007f8000000000  rw\n"), "Host virtual address for %s (ram) is 0x7f0000000000", ""},
		"memory unknown":     {blocks + "  vga.vram  4 KiB 0x0 0x1000 0x1000\n", "", `memory named "vga.vram"`},
		"nothing":            {"", "", "tells of 0 bytes"},
		"no table":           {"head\nhello\n", "", "hello"},
		"half a page":        {"head\nram 4 KiB 0x0 0x1 0x1\n", "", "ram 4 KiB"},
		"negative":           {"head\nram 4 KiB 0x0 0x1 -4096\n", "", "ram 4 KiB"},
		"memory of no host":  {"head\nram 4 KiB 0x0 0x1 0x7ffffffffffff000\n", "", "tells of"},
		"firmware of no use": {blocks + "pc.bios 4 KiB 0x0 0x1 0x100000000\n", "", "tells of"},
		"nowhere":            {blocks, "No memory is mapped at address %s", "No memory is mapped"},
		"high address":       {blocks, "Host virtual address for %s (ram) is 0xfffffffffffff000", "0xfffffffffffff000"},
		"unaligned address":  {blocks, "Host virtual address for %s (ram) is 0x7f0000000001", "0x7f0000000001"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := serveControl(t, func(conn net.Conn) {
				for in := bufio.NewScanner(conn); in.Scan(); {
					var cmd struct {
						ID        string
						Arguments map[string]string
					}
					if err := json.Unmarshal(in.Bytes(), &cmd); err != nil {
						t.Error(err)
					}
					answer := test.blocks
					if _, address, ok := strings.Cut(cmd.Arguments["command-line"], "gpa2hva "); ok {
						answer = strings.ReplaceAll(test.host, "%s", address)
					}
					reply, _ := json.Marshal(map[string]string{"return": answer, "id": cmd.ID})
					fmt.Fprintf(conn, "%s\n", reply)
				}
			})
			c, err := converse(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			defer c.close()
			got, err := findRAM(c)
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %+v, %v, want an error with %q", got, err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := ram{
				main:     region{address: 0, host: 0x7f0000000000, size: 256 << 20},
				firmware: region{address: 256 << 20, host: 0x7f0000000000, size: 64 << 10},
			}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(ram{}, region{})); diff != "" {
				t.Errorf("memory (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFindMapping maps files into this process as a monitor should, or not.
func TestFindMapping(t *testing.T) {
	const page, pages = vmm.PageSize, 8
	file := func() int {
		fd, err := unix.MemfdCreate("memory", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Ftruncate(fd, 2*pages*page); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	mine, other := file(), file()
	// mapAt maps some pages of a file at their place in the region, or over what is there.
	mapAt := func(base unsafe.Pointer, first, n int, fd int, offset int64, flags int) {
		t.Helper()
		at := unsafe.Add(base, first*page)
		if _, err := unix.MmapPtr(fd, offset, at, uintptr(n*page), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_FIXED|flags); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		change func(base unsafe.Pointer)
		want   string // an error
	}{
		"one mapping": {func(unsafe.Pointer) {}, ""},
		"in two parts": {func(base unsafe.Pointer) {
			if err := unix.Mprotect(unsafe.Slice((*byte)(unsafe.Add(base, page)), page), unix.PROT_READ); err != nil {
				t.Fatal(err)
			}
		}, ""},
		"another file within": {func(base unsafe.Pointer) { mapAt(base, 3, 1, other, 3*page, unix.MAP_PRIVATE) }, "one file"},
		"another place":       {func(base unsafe.Pointer) { mapAt(base, 3, 1, mine, 5*page, unix.MAP_PRIVATE) }, "one file"},
		"shared within":       {func(base unsafe.Pointer) { mapAt(base, 3, 1, mine, 3*page, unix.MAP_SHARED) }, "one file"},
		"no file": {func(base unsafe.Pointer) {
			mapAt(base, 0, pages, -1, 0, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		}, "one file"},
		"no file within": {func(base unsafe.Pointer) {
			mapAt(base, 3, 1, -1, 0, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		}, "one file"},
	} {
		t.Run(name, func(t *testing.T) {
			base, err := unix.MmapPtr(mine, 0, nil, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.MunmapPtr(base, pages*page)
			test.change(base)
			got, err := findMapping(os.Getpid(), region{host: uint64(uintptr(base)), size: pages * page})
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %+v, %v, want an error with %q", got, err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.shared || !got.inMemory() {
				t.Errorf("a private mapping of memory is told to be %+v", got)
			}
			linked, err := os.Stat(got.link)
			if err != nil {
				t.Fatal(err)
			}
			if linked.Size() != 2*pages*page {
				t.Errorf("the link leads to a file of %d bytes", linked.Size())
			}
		})
	}
}
