package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/dustin/go-humanize"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// checkNetwork tries what every network slot is made of, in a namespace that
// is gone a moment later.
func checkNetwork(context.Context, *app) []finding {
	type trial struct {
		check, works, remedy string
		err                  error
	}
	ns := trial{"network namespace", "can be made", "needs root and a kernel with CONFIG_NET_NS", nil}
	tap := trial{"tap device", "can be made", "needs /dev/net/tun: load the module with `modprobe tun`, or give it to this container", nil}
	nft := trial{"nftables", "answers", "needs a kernel with nf_tables: load it with `modprobe nf_tables`", nil}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: the thread ends, and the namespace with it.
		runtime.LockOSThread()
		if ns.err = unix.Unshare(unix.CLONE_NEWNET); ns.err != nil {
			tap.err, nft.err = ns.err, ns.err
			return
		}
		tap.err = tryTap()
		nft.err = tryNftables()
	}()
	<-done
	var out []finding
	for _, t := range []trial{ns, tap, nft} {
		f := okay(t.check, "%s", t.works)
		if t.err != nil {
			f = okay(t.check, "%v", t.err).fail(t.remedy)
		}
		out = append(out, f)
	}
	const forwarding = "/proc/sys/net/ipv4/conf/all/forwarding"
	f := okay("forwarding", "can be switched on for the devices that need it")
	if err := unix.Access(forwarding, unix.W_OK); err != nil {
		f = okay("forwarding", "%s: %v", forwarding, err).fail("needs root and a writable /proc/sys")
	}
	return append(out, f)
}

func tryTap() error {
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close() // the tap goes with it
	req, err := unix.NewIfreq("tap0")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(int(f.Fd()), unix.TUNSETIFF, req); err != nil {
		return fmt.Errorf("make a tap: %w", err)
	}
	return nil
}

func tryNftables() error {
	c, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return err
	}
	defer c.CloseLasting()
	if _, err := c.ListTables(); err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	return nil
}

// neededControllers are those that a machine's cgroup uses.
var neededControllers = []string{"cpu", "memory", "pids"}

func checkCgroups(context.Context, *app) []finding {
	version, have := "v1", map[string]bool{}
	if cgroups.Mode() == cgroups.Unified {
		version = "v2"
		b, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers") // unreadable: none are there
		for _, c := range strings.Fields(string(b)) {
			have[c] = true
		}
	} else {
		neededV1 := append([]string{"cpuacct"}, neededControllers...)
		for _, c := range neededV1 {
			_, err := os.Stat(filepath.Join("/sys/fs/cgroup", c, "cgroup.procs"))
			have[c] = err == nil
		}
	}
	var missing []string
	for _, c := range neededControllers {
		if !have[c] {
			missing = append(missing, c)
		}
	}
	f := okay("cgroups", "%s with the controllers %s", version, strings.Join(neededControllers, ", "))
	if len(missing) > 0 {
		f = okay("cgroups", "%s without the controllers %s", version, strings.Join(missing, ", ")).
			fail("mount or delegate them; without them no machine is held to its share")
	}
	return []finding{f}
}

// lowMemory is what a machine of the default tariff and the server need.
const lowMemory = 2 << 30

func checkMemory(context.Context, *app) []finding {
	free, err := availableMemory()
	if err != nil {
		return []finding{okay("memory", "%v", err).warn("its size cannot be told")}
	}
	f := okay("memory", "%s available", humanize.IBytes(free))
	if free < lowMemory {
		f = f.warn("small sandboxes need 1 GiB each when they use it all: close other programs")
	}
	return []finding{f}
}

func availableMemory() (uint64, error) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		var kib uint64
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, errors.New("/proc/meminfo does not tell MemAvailable")
}
