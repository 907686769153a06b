package qemu_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eqvps/eqvps/vmm"
	"github.com/eqvps/eqvps/vmm/qemu"
	"github.com/eqvps/eqvps/vmm/vmmtest"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const guestMAC = "02:00:00:00:00:02"

// TestParallelBootsWithNetwork boots four machines at once, each with a tap of
// the same name in a namespace of its own, and moves one of them by a snapshot
// into a fifth namespace.
func TestParallelBootsWithNetwork(t *testing.T) {
	image := vmmtest.BuildImage(t)
	monitor := qemu.New()
	here := currentNamespace(t)
	machines := make([]vmm.Machine, 4)
	specs := make([]vmm.Spec, len(machines))
	for i := range specs {
		dir := t.TempDir()
		specs[i] = vmm.Spec{
			ID: fmt.Sprintf("parallel-%d-%d", os.Getpid(), i), Dir: dir, VCPUs: 1 + i%2, MemoryMiB: 256,
			Kernel: image.Kernel, Initrd: image.Initrd, Cmdline: "loglevel=4",
			MemoryFile: filepath.Join(t.TempDir(), "memory"),
			Network:    &vmm.NIC{Namespace: namespaceWithTap(t, "tap0"), Tap: "tap0", MAC: guestMAC},
		}
	}
	var boots sync.WaitGroup
	for i, spec := range specs {
		boots.Go(func() {
			m, err := monitor.Boot(t.Context(), spec)
			if err != nil {
				t.Error(err)
				return
			}
			machines[i] = m
		})
	}
	boots.Wait()
	for i, m := range machines {
		if m == nil {
			continue
		}
		defer m.Kill(context.Background())
		if got := vmmtest.Ask(t, m, "mac"); got != guestMAC {
			t.Errorf("machine %d: the guest's MAC is %q", i, got)
		}
		expectNamespace(t, m, specs[i].Network)
	}
	if now := currentNamespace(t); now != here {
		t.Errorf("this thread moved from namespace %s to %s", here, now)
	}
	if t.Failed() {
		return
	}

	state, err := os.Create(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	if err := machines[0].Snapshot(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	spec := specs[0]
	if spec.Memory, err = vmm.SealMemory(spec.MemoryFile); err != nil {
		t.Fatal(err)
	}
	defer spec.Memory.Close()
	spec.State = state
	spec.ID += "-copy"
	spec.Dir = t.TempDir()
	spec.Network = &vmm.NIC{Namespace: namespaceWithTap(t, "tap0"), Tap: "tap0", MAC: guestMAC}
	m, err := monitor.Restore(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Kill(context.Background())
	if got := vmmtest.Ask(t, m, "mac"); got != guestMAC {
		t.Errorf("the copy's MAC is %q", got)
	}
	expectNamespace(t, m, spec.Network)

	testHeld(t, m)
	testStopped(t, m)
}

// testHeld: while its memory is read, a monitor does nothing but wait with its
// device state. Afterwards it has nothing left of it.
func testHeld(t *testing.T, m vmm.Machine) {
	state, err := os.Create(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	descriptors := func() int {
		all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", m.Handle().PID))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := descriptors()
	held := false
	err = m.Suspend(t.Context(), state, func(uint64, []byte) error {
		for end := time.Now().Add(10 * time.Second); !held && time.Now().Before(end); time.Sleep(time.Millisecond) {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", m.Handle().PID))
			if err != nil {
				return err
			}
			var call int
			fmt.Sscan(string(b), &call)
			held = call == unix.SYS_WRITE || call == unix.SYS_WRITEV
		}
		if !held {
			return errors.New("the monitor is not held")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := m.Continue(t.Context()); err != nil {
		t.Error(err)
	}
	if got := vmmtest.Ask(t, m, "mac"); got != guestMAC {
		t.Errorf("after Continue the guest's MAC is %q", got)
	}
	for end := time.Now().Add(10 * time.Second); descriptors() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the monitor keeps %d descriptors, it had %d", descriptors(), before)
		}
	}
}

// testStopped asks a monitor that does not run any more.
func testStopped(t *testing.T, m vmm.Machine) {
	if err := syscall.Kill(m.Handle().PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := m.Console(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Console of a stopped monitor: %v", err)
	}
	if err := m.Snapshot(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Snapshot of a stopped monitor: %v", err)
	}
	if err := m.Suspend(ctx, nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Suspend of a stopped monitor: %v", err)
	}
	if err := m.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(m.Handle().PID, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("after Kill: process %d: %v", m.Handle().PID, err)
	}
}

// expectNamespace checks that the monitor runs in the namespace and holds its tap.
func expectNamespace(t *testing.T, m vmm.Machine, nic *vmm.NIC) {
	t.Helper()
	var want, got unix.Stat_t
	if err := errors.Join(
		unix.Stat(nic.Namespace, &want),
		unix.Stat(fmt.Sprintf("/proc/%d/ns/net", m.Handle().PID), &got),
	); err != nil {
		t.Fatal(err)
	}
	if want.Ino != got.Ino {
		t.Errorf("the monitor runs in network namespace %d, want %d", got.Ino, want.Ino)
	}
	ns, err := netns.GetFromPath(nic.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	handle, err := netlink.NewHandleAt(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer handle.Close()
	link, err := handle.LinkByName(nic.Tap)
	if err != nil {
		t.Fatal(err)
	}
	if link.Attrs().RawFlags&unix.IFF_LOWER_UP == 0 {
		t.Error("nobody holds the tap")
	}
}

// namespaceWithTap makes a network namespace with a tap and returns its path.
func namespaceWithTap(t *testing.T, tap string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "netns")
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		result <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				return err
			}
			if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
				return err
			}
			link := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: tap}, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_ONE_QUEUE | netlink.TUNTAP_VNET_HDR}
			if err := netlink.LinkAdd(link); err != nil {
				return err
			}
			return netlink.LinkSetUp(link)
		}()
	}()
	err := <-result
	t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func currentNamespace(t *testing.T) string {
	t.Helper()
	ns, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return ns
}
