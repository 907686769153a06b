package main

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestMTU(t *testing.T) {
	for cmdline, want := range map[string]int{
		"": defaultMTU, "console=ttyS0 eqvps.mtu=1500 quiet\n": 1500, "eqvps.mtu=x": defaultMTU,
		"eqvps.mtu=10": defaultMTU, "eqvps.mtu=99999": defaultMTU, "xeqvps.mtu=1500": defaultMTU,
	} {
		if got := mtu(cmdline); got != want {
			t.Errorf("mtu(%q) = %d, want %d", cmdline, got, want)
		}
	}
}

func TestRewrite(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, content := range []string{"a long line\n", "short\n", "other\n", "longer again\n"} {
		if err := rewrite(f, content); err != nil {
			t.Fatal(err)
		}
		if b, _ := os.ReadFile(name); string(b) != content {
			t.Errorf("the file holds %q, want %q", b, content)
		}
	}
}

// Entropy goes where it should: the kernel of this machine takes it too.
func TestAddEntropy(t *testing.T) {
	fd, err := unix.Open("/dev/urandom", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := addEntropy(fd, make([]byte, 64)); err != nil {
		t.Error(err)
	}
	if err := addEntropy(fd, make([]byte, 31)); err == nil {
		t.Error("too little entropy is accepted")
	}
}

// The kernel's struct rtentry has 120 bytes on 64-bit machines.
func TestRouteEntrySize(t *testing.T) {
	var rt rtentry
	if size := unsafe.Sizeof(rt); size != 120 {
		t.Errorf("rtentry has %d bytes", size)
	}
	if off := unsafe.Offsetof(rt.dev); off != 88 {
		t.Errorf("the device is at offset %d", off)
	}
}
