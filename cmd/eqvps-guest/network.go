package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Every guest sees the same addresses; what makes it unique lies outside.
var (
	guestAddr = [4]byte{10, 0, 0, 2}
	guestMask = [4]byte{255, 255, 255, 252}
	gateway   = [4]byte{10, 0, 0, 1}
)

const (
	device     = "eth0"
	defaultMTU = 1400
)

// setupNetwork brings up lo and, in a machine that has it, eth0.
func setupNetwork() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := up(fd, "lo"); err != nil {
		return err
	}
	if _, err := os.Stat("/sys/class/net/" + device); err != nil {
		return nil
	}
	cmdline, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	// Nothing outside speaks IPv6 with a guest.
	_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+device+"/disable_ipv6", []byte("1"), 0)
	return errors.Join(
		setMTU(fd, mtu(string(cmdline))),
		setAddr(fd, unix.SIOCSIFADDR, guestAddr),
		setAddr(fd, unix.SIOCSIFNETMASK, guestMask),
		up(fd, device),
		addDefaultRoute(fd),
	)
}

// mtu reads eqvps.mtu=N from the kernel's command line.
func mtu(cmdline string) int {
	for word := range strings.FieldsSeq(cmdline) {
		if v, ok := strings.CutPrefix(word, "eqvps.mtu="); ok {
			if n, err := strconv.Atoi(v); err == nil && n >= 576 && n <= 9000 {
				return n
			}
		}
	}
	return defaultMTU
}

func setMTU(fd, n int) error {
	r, err := unix.NewIfreq(device)
	if err != nil {
		return err
	}
	r.SetUint32(uint32(n))
	return named("mtu", unix.IoctlIfreq(fd, unix.SIOCSIFMTU, r))
}

func setAddr(fd int, request uint, addr [4]byte) error {
	r, err := unix.NewIfreq(device)
	if err != nil {
		return err
	}
	if err := r.SetInet4Addr(addr[:]); err != nil {
		return err
	}
	return named("address", unix.IoctlIfreq(fd, request, r))
}

func up(fd int, name string) error {
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, r); err != nil {
		return named(name, err)
	}
	r.SetUint16(r.Uint16() | unix.IFF_UP)
	return named(name, unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r))
}

// rtentry is the kernel's struct rtentry on 64-bit machines.
type rtentry struct {
	_       uint64
	dst     unix.RawSockaddrInet4
	gateway unix.RawSockaddrInet4
	mask    unix.RawSockaddrInet4
	flags   uint16
	_       int16
	_       uint64
	_       uint64
	metric  int16
	dev     uintptr
	mtu     uint64
	window  uint64
	irtt    uint16
}

func addDefaultRoute(fd int) error {
	name, err := unix.BytePtrFromString(device)
	if err != nil {
		return err
	}
	rt := rtentry{flags: unix.RTF_UP | unix.RTF_GATEWAY, dev: uintptr(unsafe.Pointer(name))}
	rt.dst.Family, rt.mask.Family = unix.AF_INET, unix.AF_INET
	rt.gateway.Family, rt.gateway.Addr = unix.AF_INET, gateway
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCADDRT, uintptr(unsafe.Pointer(&rt)))
	runtime.KeepAlive(name)
	if errno != 0 {
		return named("route", errno)
	}
	return nil
}

func named(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
