//go:build !amd64

package qemu

// tscKHz is unknown: on other processors TCG invents the guest's counter.
func tscKHz() int { return 0 }
