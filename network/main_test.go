package network

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const inLab = "EQVPS_NETWORK_LAB"

// TestMain runs the tests in a host of their own: a fresh network namespace
// and a fresh /run. Whatever a test leaves behind or breaks, the machine does
// not see it, and it is gone when the tests end.
func TestMain(m *testing.M) {
	if os.Getenv(inLab) == "" {
		os.Exit(again())
	}
	if err := enterLab(); err != nil {
		fmt.Fprintln(os.Stderr, "set up the lab (the tests need root):", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func again() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inLab+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		if cmd.ProcessState == nil {
			fmt.Fprintln(os.Stderr, "start the tests in namespaces of their own (they need root):", err)
		}
		return 1
	}
	return 0
}

func enterLab() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	return buildInternet()
}
