package vmmtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/eqvps/eqvps/vmm"
)

var lastMachine atomic.Uint64

// bootSpec is a machine of two processors whose memory file is in dir.
func (f Factory) bootSpec(t testing.TB, dir string) vmm.Spec {
	t.Helper()
	return vmm.Spec{
		ID:         fmt.Sprintf("test-%d-%d", os.Getpid(), lastMachine.Add(1)),
		Dir:        t.TempDir(),
		VCPUs:      2,
		MemoryMiB:  256,
		Kernel:     f.Image.Kernel,
		Initrd:     f.Image.Initrd,
		Cmdline:    "loglevel=4",
		MemoryFile: filepath.Join(dir, "memory"),
	}
}

// restoreSpec is a copy of the snapshot with an upper disk of its own.
func (f Factory) restoreSpec(t testing.TB, s snapshot) vmm.Spec {
	t.Helper()
	spec := f.bootSpec(t, t.TempDir())
	spec.MemoryFile = ""
	spec.Memory, spec.State = s.memory, s.state
	upper := filepath.Join(t.TempDir(), "upper")
	b, err := os.ReadFile(s.upper)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(upper, b, 0o600); err != nil {
		t.Fatal(err)
	}
	spec.Disks = s.disks(upper)
	return spec
}

func (s snapshot) disks(upper string) []vmm.Disk {
	return []vmm.Disk{
		{Path: s.base, Serial: "base", ReadOnly: true},
		{Path: upper, Serial: "upper", Volatile: true},
	}
}

func writeDisk(t testing.TB, path, text string) {
	t.Helper()
	block := make([]byte, 1<<20)
	copy(block, text)
	if err := os.WriteFile(path, block, 0o600); err != nil {
		t.Fatal(err)
	}
}

func readDisk(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimRight(string(b[:512]), "\x00")
}

// testRefusals gives specs that no machine can be made of.
func (f Factory) testRefusals(t *testing.T) {
	for name, spoil := range map[string]func(*vmm.Spec){
		"no id":           func(s *vmm.Spec) { s.ID = "" },
		"id with options": func(s *vmm.Spec) { s.ID = "a,b=c" },
		"relative folder": func(s *vmm.Spec) { s.Dir = "here" },
		"no processor":    func(s *vmm.Spec) { s.VCPUs = 0 },
		"no memory":       func(s *vmm.Spec) { s.MemoryMiB = 0 },
		"long serial":     func(s *vmm.Spec) { s.Disks = []vmm.Disk{{Path: f.Image.Kernel, Serial: strings.Repeat("x", 21)}} },
		"bad tap": func(s *vmm.Spec) {
			s.Network = &vmm.NIC{Namespace: "/run/netns/x", Tap: "a,b", MAC: "02:00:00:00:00:02"}
		},
		"bad MAC":        func(s *vmm.Spec) { s.Network = &vmm.NIC{Namespace: "/run/netns/x", Tap: "tap0", MAC: "x"} },
		"too many disks": func(s *vmm.Spec) { s.Disks = slices.Repeat([]vmm.Disk{{Path: f.Image.Kernel, ReadOnly: true}}, 30) },
		"no kernel":      func(s *vmm.Spec) { s.Kernel = filepath.Join(s.Dir, "none") },
		"no initramfs":   func(s *vmm.Spec) { s.Initrd = filepath.Join(s.Dir, "none") },
		"no disk":        func(s *vmm.Spec) { s.Disks = []vmm.Disk{{Path: filepath.Join(s.Dir, "none")}} },
		"no namespace": func(s *vmm.Spec) {
			s.Network = &vmm.NIC{Namespace: filepath.Join(s.Dir, "none"), Tap: "tap0", MAC: "02:00:00:00:00:02"}
		},
		"no folder":        func(s *vmm.Spec) { s.Dir = filepath.Join(s.Dir, "none") },
		"no memory folder": func(s *vmm.Spec) { s.MemoryFile = filepath.Join(s.Dir, "none", "memory") },
	} {
		t.Run(name, func(t *testing.T) {
			spec := f.bootSpec(t, t.TempDir())
			spoil(&spec)
			m, err := f.New().Boot(t.Context(), spec)
			if err == nil {
				killAtEnd(t, m)
				t.Fatal("the machine was started")
			}
			t.Log(err)
			f.expectNothing(t, spec)
		})
	}
	t.Run("memory file exists", func(t *testing.T) {
		spec := f.bootSpec(t, t.TempDir())
		if err := os.WriteFile(spec.MemoryFile, []byte("another machine's"), 0o600); err != nil {
			t.Fatal(err)
		}
		if m, err := f.New().Boot(t.Context(), spec); err == nil {
			killAtEnd(t, m)
			t.Fatal("the machine was started")
		}
		if b, err := os.ReadFile(spec.MemoryFile); err != nil || string(b) != "another machine's" {
			t.Errorf("the file holds %q, %v", b, err)
		}
	})
}

// testFailedStarts fails a start from within.
func (f Factory) testFailedStarts(t *testing.T) {
	spec := func(t *testing.T) vmm.Spec { return f.bootSpec(t, t.TempDir()) }
	f.testFailures(t, f.New().Boot, spec)
}

func (f Factory) testFailedRestores(t *testing.T, s snapshot) {
	spec := func(t *testing.T) vmm.Spec { return f.restoreSpec(t, s) }
	f.testFailures(t, f.New().Restore, spec)

	t.Run("garbage for state", func(t *testing.T) {
		spec := spec(t)
		path := filepath.Join(t.TempDir(), "state")
		if err := os.WriteFile(path, []byte(strings.Repeat("garbage", 1000)), 0o600); err != nil {
			t.Fatal(err)
		}
		garbage, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer garbage.Close()
		spec.State = garbage
		m, err := f.New().Restore(t.Context(), spec)
		if err == nil {
			killAtEnd(t, m)
			t.Fatal("the machine was started")
		}
		t.Log(err)
		f.expectNothing(t, spec)
	})
	t.Run("no snapshot", func(t *testing.T) {
		spec := spec(t)
		spec.State = nil
		if m, err := f.New().Restore(t.Context(), spec); err == nil {
			killAtEnd(t, m)
			t.Fatal("the machine was started")
		}
		f.expectNothing(t, spec)
	})
}

func (f Factory) testFailures(t *testing.T, start func(context.Context, vmm.Spec) (vmm.Machine, error), makeSpec func(*testing.T) vmm.Spec) {
	for name, test := range map[string]struct {
		onSpawn func(cancel func()) error
		want    error
	}{
		"OnSpawn fails":       {func(func()) error { return os.ErrPermission }, os.ErrPermission},
		"canceled on the way": {func(cancel func()) error { cancel(); return nil }, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			spec := makeSpec(t)
			spec.OnSpawn = func(int) error { return test.onSpawn(cancel) }
			m, err := start(ctx, spec)
			if err == nil {
				killAtEnd(t, m)
			}
			if !errors.Is(err, test.want) {
				t.Fatalf("got %v, want %v", err, test.want)
			}
			f.expectNothing(t, spec)
		})
	}
	t.Run("canceled before", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		spec := makeSpec(t)
		spec.OnSpawn = func(int) error { t.Error("a process was started"); return nil }
		if m, err := start(ctx, spec); err == nil {
			killAtEnd(t, m)
			t.Fatal("the machine was started")
		}
		f.expectNothing(t, spec)
	})
}

// expectNothing looks for what a failed start may leave: a process, files.
func (f Factory) expectNothing(t *testing.T, spec vmm.Spec) {
	t.Helper()
	info, err := f.New().Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.New().Adopt(t.Context(), vmm.Handle{Monitor: info.Monitor, ID: spec.ID, Dir: spec.Dir}); !errors.Is(err, vmm.ErrGone) {
		t.Errorf("a monitor is left: Adopt says %v", err)
	}
	if left, _ := os.ReadDir(spec.Dir); len(left) > 0 {
		t.Errorf("files are left in the machine's folder: %v", left)
	}
	if spec.MemoryFile != "" {
		if _, err := os.Lstat(spec.MemoryFile); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the memory file is left: %v", err)
		}
	}
}
