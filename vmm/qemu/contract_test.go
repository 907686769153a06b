package qemu_test

import (
	"syscall"
	"testing"

	"github.com/eqvps/eqvps/vmm"
	"github.com/eqvps/eqvps/vmm/qemu"
	"github.com/eqvps/eqvps/vmm/vmmtest"
)

func factory(t testing.TB) vmmtest.Factory {
	monitor := qemu.New()
	return vmmtest.Factory{
		New:       func() vmm.Monitor { return monitor },
		Image:     vmmtest.BuildImage(t),
		Firmware:  true,
		Terminate: func(h vmm.Handle) error { return syscall.Kill(h.PID, syscall.SIGKILL) },
	}
}

func TestContract(t *testing.T) { vmmtest.Run(t, factory(t)) }

func BenchmarkRestore(b *testing.B) { vmmtest.BenchmarkRestore(b, factory(b)) }

func BenchmarkSuspend(b *testing.B) { vmmtest.BenchmarkSuspend(b, factory(b)) }
