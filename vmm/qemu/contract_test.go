package qemu_test

import (
	"syscall"
	"testing"

	"github.com/eqvps/eqvps/vmm"
	"github.com/eqvps/eqvps/vmm/qemu"
	"github.com/eqvps/eqvps/vmm/vmmtest"
)

func TestContract(t *testing.T) {
	vmmtest.Run(t, vmmtest.Factory{
		New:       func() vmm.Monitor { return qemu.New() },
		Image:     vmmtest.BuildImage(t),
		Terminate: func(h vmm.Handle) error { return syscall.Kill(h.PID, syscall.SIGKILL) },
	})
}
