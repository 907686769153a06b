package qemu

import (
	"fmt"
	"os"
	"strings"
)

// accelerator is how guest instructions run.
type accelerator struct {
	name   string // "kvm" or "tcg"
	cpu    string // the CPU model that goes with it
	reason string // one sentence
	// hardened tells whether the guest's kernel shall guard against leaks through
	// the processor, and lay out every process's memory at random.
	hardened bool
}

// tcgCPU is what TCG can emulate less what only costs: five-level page tables
// make every walk longer; the kernel's protection from user pages (smap, smep,
// pku) and bounds registers (mpx) are paid for in every system call and context
// switch, and protect nothing where all that runs is one tenant's, as root.
// Without the promise of fast string instructions (erms, fsrm) the kernel copies
// in loops that emulate twice as fast.
const tcgCPU = "max,la57=off,smap=off,smep=off,pku=off,mpx=off,erms=off,fsrm=off"

// args are QEMU's options for the accelerator. The bound on translated code is
// only filled as code is run: an idle machine stays small, and Node.js, which
// fills 32 MiB and then translates everything again, runs in half the time.
func (a accelerator) args() []string {
	if a.name == "kvm" {
		return []string{"-accel", "kvm", "-cpu", a.cpu}
	}
	return []string{"-accel", "tcg,thread=multi,tb-size=128", "-cpu", a.cpu}
}

// chooseAccelerator takes KVM only where the processor itself can virtualize.
// A /dev/kvm that merely opens may be a software implementation, in which stock
// guest kernels are slower than under TCG.
func chooseAccelerator(cpuinfo, kvm string) accelerator {
	tcg := func(reason string) accelerator { return accelerator{name: "tcg", cpu: tcgCPU, reason: reason} }
	b, err := os.ReadFile(cpuinfo)
	if err != nil {
		return tcg(fmt.Sprintf("Software emulation, because the processor's flags cannot be read: %v.", err))
	}
	if !hasFlag(string(b), "vmx") && !hasFlag(string(b), "svm") {
		return tcg("Software emulation, because the processor offers no hardware virtualization (neither vmx nor svm).")
	}
	f, err := os.OpenFile(kvm, os.O_RDWR, 0)
	if err != nil {
		return tcg(fmt.Sprintf("Software emulation, because the processor can virtualize but KVM does not open: %v.", err))
	}
	f.Close()
	return accelerator{name: "kvm", cpu: "host", hardened: true, reason: "Hardware virtualization, because the processor offers it and " + kvm + " opens."}
}

// hasFlag looks for a flag of the first processor in the text of /proc/cpuinfo.
func hasFlag(cpuinfo, flag string) bool {
	for line := range strings.Lines(cpuinfo) {
		name, flags, _ := strings.Cut(line, ":")
		if strings.TrimSpace(name) == "flags" {
			for f := range strings.FieldsSeq(flags) {
				if f == flag {
					return true
				}
			}
			return false
		}
	}
	return false
}
