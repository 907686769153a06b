package qemu

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/eqvps/eqvps/vmm"
)

// The descriptors a monitor inherits, in the order of exec.Cmd.ExtraFiles.
const (
	fdControl = 3 + iota // listening socket of the control channel
	fdGuest              // listening socket of the guest channel
	fdMemory             // the guest's memory
	fdState              // Restore only: device state
)

const (
	consoleSize = 64 << 10 // bytes of console output that are kept
	guestPort   = "org.eqvps.guest.0"
	deviceSlots = 8 // virtio-mmio slots of a microvm with one I/O APIC
)

// machineArgs are the options that Boot and Restore share. A snapshot fits only
// a machine of the same devices in the same slots, so everything that shapes
// the machine is here and nothing of it is left to QEMU's defaults.
func machineArgs(h *host, spec vmm.Spec, share bool) ([]string, error) {
	args := []string{
		"-name", spec.ID,
		"-nodefaults", "-no-user-config", "-display", "none",
		// A guest that resets or panics ends its monitor.
		"-no-reboot",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		// acpi tells the kernel of its devices: Debian's does not read them
		// from the command line. Without rtc a kernel waits 1 s for one. With
		// ioapic2 the device in the first slot gets no interrupts.
		"-machine", "microvm,memory-backend=ram,acpi=on,ioapic2=off,pit=on,pic=on,rtc=on,pcie=off,usb=off," +
			"isa-serial=on,suppress-vmdesc=on,x-option-roms=off,auto-kernel-cmdline=off,graphics=off,dump-guest-core=off,mem-merge=off",
		"-smp", strconv.Itoa(spec.VCPUs),
		"-m", strconv.Itoa(spec.MemoryMiB) + "M",
		"-object", fmt.Sprintf("memory-backend-file,id=ram,size=%dM,mem-path=/proc/self/fd/%d,share=%s", spec.MemoryMiB, fdMemory, onOff(share)),
		"-global", "virtio-mmio.force-legacy=off",
		// A snapshot is taken of a stopped machine; without this the restored
		// one would stop as well and need one more round trip.
		"-global", "migration.store-global-state=off",
		"-chardev", fmt.Sprintf("socket,id=control,fd=%d,server=on,wait=off", fdControl),
		"-mon", "chardev=control,mode=control",
		// A ring in memory: a guest that floods its console costs the host nothing.
		"-chardev", "ringbuf,id=console,size=" + strconv.Itoa(consoleSize),
		"-serial", "chardev:console",
	}
	args = append(args, h.accel.args()...)

	// The kernel meets the slots from the last to the first.
	slot := deviceSlots
	device := func(driver, options string) {
		slot--
		args = append(args, "-device", fmt.Sprintf("%s,bus=virtio-mmio-bus.%d%s", driver, slot, options))
	}
	for i, d := range spec.Disks {
		node := "disk" + strconv.Itoa(i)
		blockdev, err := json.Marshal(blockdev(node, d))
		if err != nil {
			return nil, err
		}
		args = append(args, "-blockdev", string(blockdev))
		// A full or failing disk of the host is the guest's to hear of: left to
		// itself QEMU stops the machine and waits for somebody to notice.
		device("virtio-blk-device", ",drive="+node+",serial="+d.Serial+",werror=report,rerror=report")
	}
	if n := spec.Network; n != nil {
		args = append(args, "-netdev", "tap,id=net,ifname="+n.Tap+",script=no,downscript=no,vhost=off")
		device("virtio-net-device", ",netdev=net,mac="+n.MAC)
	}
	args = append(args, "-chardev", fmt.Sprintf("socket,id=guest,fd=%d,server=on,wait=off", fdGuest))
	device("virtio-serial-device", ",id=ports,max_ports=2") // port 0 is reserved for a console
	args = append(args, "-device", "virtserialport,bus=ports.0,nr=1,chardev=guest,name="+guestPort)
	args = append(args, "-object", "rng-builtin,id=entropy")
	device("virtio-rng-device", ",rng=entropy")
	return args, nil
}

// blockdev describes a raw disk for QEMU. Writes go through the host's page
// cache, which all machines share for the base disk. QEMU's file locks stay
// on: any number of machines may read a disk, one may write it.
func blockdev(node string, d vmm.Disk) map[string]any {
	return map[string]any{
		"driver":    "raw",
		"node-name": node,
		"read-only": d.ReadOnly,
		"discard":   "unmap",
		"cache":     map[string]any{"direct": false, "no-flush": d.Volatile},
		"file": map[string]any{
			"driver":    "file",
			"filename":  d.Path,
			"read-only": d.ReadOnly,
			"discard":   "unmap",
			"cache":     map[string]any{"direct": false, "no-flush": d.Volatile},
		},
	}
}

// bootArgs are the options of a cold boot.
func bootArgs(h *host, spec vmm.Spec) []string {
	args := []string{"-S", "-kernel", spec.Kernel, "-append", cmdline(h, spec.Cmdline)}
	if spec.Initrd != "" {
		args = append(args, "-initrd", spec.Initrd)
	}
	return args
}

// cmdline is what the kernel needs to live in this machine, and then more.
//
// Under TCG a kernel that measures its clocks gets them wrong, or hangs, as
// soon as other machines take the processor from it. It is told the rate of
// the time stamp counter, which under TCG is the host's, and to trust it.
func cmdline(h *host, more string) string {
	words := []string{"console=ttyS0", "reboot=t", "panic=-1", "pci=off"}
	if h.tscKHz > 0 {
		words = append(words, "tsc_early_khz="+strconv.Itoa(h.tscKHz), "tsc=reliable", "no_timer_check")
	}
	if !h.accel.hardened {
		// An emulated processor leaks nothing that retpolines and their like
		// would hold back, and they take a third of a fork and exec. Code that
		// lies elsewhere in every process is translated anew for every process:
		// a login shell takes four times as long. Memory that is cleared when it
		// is given out costs an eighth of the time of much output. Emulation is
		// for code that is trusted anyway, see Warnings.
		words = append(words, "mitigations=off", "norandmaps", "init_on_alloc=0")
	}
	if more != "" {
		words = append(words, more)
	}
	return strings.Join(words, " ")
}

// restoreArgs are the options of a restore. There is no kernel: it already is
// in the guest's memory, and loading it again would cost each machine its size.
// The state of a suspended machine does not begin with a description of the
// machine, as that of a snapshot does.
func restoreArgs(suspended bool) []string {
	args := []string{"-incoming", "defer"}
	if suspended {
		args = append(args, "-global", "migration.send-configuration=off")
	}
	return args
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// reopen opens the file behind f once more, so that the new descriptor has an
// offset of its own.
func reopen(f *os.File) (*os.File, error) {
	return os.Open("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
}
