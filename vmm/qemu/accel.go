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
}

// args are QEMU's options for the accelerator. 32 MiB of translated code holds
// what a guest runs in its first minutes and keeps an idle machine small.
func (a accelerator) args() []string {
	if a.name == "kvm" {
		return []string{"-accel", "kvm", "-cpu", a.cpu}
	}
	return []string{"-accel", "tcg,thread=multi,tb-size=32", "-cpu", a.cpu}
}

// chooseAccelerator takes KVM only where the processor itself can virtualize.
// A /dev/kvm that merely opens may be a software implementation, in which stock
// guest kernels are slower than under TCG.
func chooseAccelerator(cpuinfo, kvm string) accelerator {
	tcg := func(reason string) accelerator { return accelerator{name: "tcg", cpu: "max", reason: reason} }
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
	return accelerator{name: "kvm", cpu: "host", reason: "Hardware virtualization, because the processor offers it and " + kvm + " opens."}
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
