package vmmtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/eqvps/eqvps/vmm"
	"github.com/google/go-cmp/cmp"
)

// Factory is what the contract needs to know of an implementation.
type Factory struct {
	// New returns the monitor as a server that was just started gets it.
	New func() vmm.Monitor
	// Image is what machines boot from. The guest in it answers the commands
	// of the program testguest.
	Image Image
	// Firmware tells that a machine has memory beyond Spec.MemoryMiB, which a
	// suspended one must find as it was.
	Firmware bool
	// Terminate ends the monitor of a machine behind the back of its owner.
	Terminate func(h vmm.Handle) error
}

// patience bounds each wait for a machine. It is long because the host may be
// busy, and nothing waits for it to pass.
const patience = 2 * time.Minute

// Run tests that an implementation of vmm.Monitor keeps the contract.
func Run(t *testing.T, f Factory) {
	t.Run("Info", f.testInfo)
	t.Run("Refusals", f.testRefusals)
	t.Run("FailedStarts", f.testFailedStarts)
	s := f.testBoot(t)
	if t.Failed() {
		return
	}
	t.Run("PrivateCopies", func(t *testing.T) { f.testPrivateCopies(t, s) })
	t.Run("Redial", func(t *testing.T) { f.testRedial(t, s) })
	t.Run("Kill", func(t *testing.T) { f.testKill(t, s) })
	t.Run("KilledFromOutside", func(t *testing.T) { f.testKilledFromOutside(t, s) })
	t.Run("Panic", func(t *testing.T) { f.testPanic(t, s) })
	t.Run("Adopt", func(t *testing.T) { f.testAdopt(t, s) })
	t.Run("Console", func(t *testing.T) { f.testConsole(t, s) })
	t.Run("NoSnapshotOfACopy", func(t *testing.T) { f.testNoSnapshotOfACopy(t, s) })
	t.Run("FailedRestores", func(t *testing.T) { f.testFailedRestores(t, s) })
	t.Run("Suspend", func(t *testing.T) { f.testSuspend(t, s) })
	t.Run("Continue", func(t *testing.T) { f.testContinue(t, s) })
	t.Run("KilledWhileSuspending", func(t *testing.T) { f.testKilledWhileSuspending(t, s) })
	t.Run("NoMemoryFile", f.testNoMemoryFile)
}

// snapshot is a frozen machine whose guest holds the value "template".
type snapshot struct {
	memory *os.File
	state  *os.File
	base   string // the disk all copies read
	upper  string // the disk each copy gets its own of
}

func (f Factory) testInfo(t *testing.T) {
	info, err := f.New().Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if info.Monitor == "" || info.Version == "" || info.Accel == "" || info.CPUModel == "" || info.Reason == "" {
		t.Errorf("Info leaves something out: %+v", info)
	}
}

// testBoot boots the one machine that all other tests restore.
func (f Factory) testBoot(t *testing.T) (s snapshot) {
	// Outlives the subtest: its files belong to t.
	dir := t.TempDir()
	t.Run("Boot", func(t *testing.T) {
		s = snapshot{base: filepath.Join(dir, "base"), upper: filepath.Join(dir, "upper")}
		writeDisk(t, s.base, "base")
		writeDisk(t, s.upper, "upper")
		spec := f.bootSpec(t, dir)
		spec.Disks = s.disks(s.upper)
		spawned := 0
		spec.OnSpawn = func(pid int) error { spawned = pid; return nil }

		m := f.boot(t, spec)
		if h := m.Handle(); h.PID == 0 || h.PID != spawned || h.ID != spec.ID || h.Dir != spec.Dir || h.Monitor == "" || h.StartTime == 0 {
			t.Errorf("handle %+v does not fit process %d of machine %s in %s", h, spawned, spec.ID, spec.Dir)
		}
		g := dialGuest(t, m)
		for _, q := range [][2]string{
			{"cpus", "2"},
			{"serial vda", "base"}, {"read vda", "base"},
			{"serial vdb", "upper"}, {"read vdb", "upper"}, {"write vdb changed", "ok"}, {"read vdb", "changed"},
			{"set template", "ok"},
		} {
			g.expect(q[0], q[1])
		}
		if answer := g.ask("write vda x"); !strings.HasPrefix(answer, "error:") {
			t.Errorf("writing the read-only disk answers %q", answer)
		}
		if text, err := m.Console(t.Context()); err != nil || !strings.Contains(text, "testguest: ready") {
			t.Errorf("console: %v, %q", err, text)
		}
		if used, err := m.CPUTime(); err != nil || used <= 0 {
			t.Errorf("CPUTime after a boot: %v, %v", used, err)
		}

		var err error
		if s.state, err = os.Create(filepath.Join(dir, "state")); err != nil {
			t.Fatal(err)
		}
		if err := m.Snapshot(t.Context(), s.state); err != nil {
			t.Fatal(err)
		}
		if got := readDisk(t, s.upper); got != "changed" {
			t.Errorf("after the snapshot the disk holds %q, want what the guest wrote", got)
		}
		if err := m.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.memory, err = vmm.SealMemory(spec.MemoryFile); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() {
		for _, file := range []*os.File{s.memory, s.state} {
			if file != nil {
				file.Close()
			}
		}
	})
	return s
}

// testPrivateCopies runs two copies of one snapshot at once, one of them in a
// folder whose path is too long for a socket's address.
func (f Factory) testPrivateCopies(t *testing.T, s snapshot) {
	long := filepath.Join(t.TempDir(), strings.Repeat("long/", 40))
	if err := os.MkdirAll(long, 0o700); err != nil {
		t.Fatal(err)
	}
	spec := f.restoreSpec(t, s)
	spec.Dir = long
	a := dialGuest(t, f.restore(t, spec))
	b := dialGuest(t, f.restore(t, f.restoreSpec(t, s)))
	a.expect("get", "template")
	a.expect("set a", "ok")
	a.expect("write vdb a", "ok")
	b.expect("get", "template")
	b.expect("set b", "ok")
	b.expect("read vdb", "changed")
	b.expect("read vda", "base")
	a.expect("get", "a")
	a.expect("read vdb", "a")

	dialGuest(t, f.restore(t, f.restoreSpec(t, s))).expect("get", "template")
}

// testRedial drops connections with and without unread bytes in them.
func (f Factory) testRedial(t *testing.T, s snapshot) {
	m := f.restore(t, f.restoreSpec(t, s))
	for i := range 5 {
		g := dialGuest(t, m)
		g.expect(fmt.Sprintf("set %d", i), "ok")
		if i%2 == 0 {
			g.send("ping unread")
			g.conn.Close()
		} // else the next dial replaces a connection that is still open
	}
	dialGuest(t, m).expect("get", "4")
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	dialGuest(t, m).expect("get", "4")
}

func (f Factory) testKill(t *testing.T, s snapshot) {
	m := f.restore(t, f.restoreSpec(t, s))
	dialGuest(t, m)
	select {
	case <-m.Done():
		t.Fatal("Done is closed while the machine runs")
	default:
	}
	errs := make(chan error)
	for range 3 {
		go func() { errs <- m.Kill(t.Context()) }()
	}
	for range 3 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	f.expectGone(t, m)
	if err := m.Kill(t.Context()); err != nil {
		t.Errorf("killing a dead machine: %v", err)
	}
}

func (f Factory) testKilledFromOutside(t *testing.T, s snapshot) {
	m := f.restore(t, f.restoreSpec(t, s))
	if err := f.Terminate(m.Handle()); err != nil {
		t.Fatal(err)
	}
	f.expectGone(t, m)
	if err := m.Kill(t.Context()); err != nil {
		t.Errorf("killing a dead machine: %v", err)
	}
}

// testPanic: a kernel that panics takes its monitor with it.
func (f Factory) testPanic(t *testing.T, s snapshot) {
	m := f.restore(t, f.restoreSpec(t, s))
	dialGuest(t, m).send("panic")
	f.expectGone(t, m)
}

// testAdopt finds a machine again with the monitor of a later server.
func (f Factory) testAdopt(t *testing.T, s snapshot) {
	m := f.restore(t, f.restoreSpec(t, s))
	dialGuest(t, m).expect("set kept", "ok")
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	h := m.Handle()
	adopted, err := f.New().Adopt(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	dialGuest(t, adopted).expect("get", "kept")
	if diff := cmp.Diff(h, adopted.Handle()); diff != "" {
		t.Errorf("the handle changed (-before +after):\n%s", diff)
	}
	if _, err := adopted.Console(t.Context()); err != nil {
		t.Error(err)
	}
	adopted.Close()

	forgotten := vmm.Handle{Monitor: h.Monitor, ID: h.ID, Dir: h.Dir}
	if adopted, err = f.New().Adopt(t.Context(), forgotten); err != nil {
		t.Fatalf("adopt without the process id: %v", err)
	}
	if diff := cmp.Diff(h, adopted.Handle()); diff != "" {
		t.Errorf("the process was not found again (-want +got):\n%s", diff)
	}

	for name, change := range map[string]func(*vmm.Handle){
		"another start time": func(h *vmm.Handle) { h.StartTime++ },
		"another process":    func(h *vmm.Handle) { h.PID, h.StartTime = os.Getpid(), 0 },
		"no such process":    func(h *vmm.Handle) { h.PID = 1<<22 + 1 },
		"another id":         func(h *vmm.Handle) { h.ID += "x" },
		"another folder":     func(h *vmm.Handle) { h.PID, h.Dir = 0, h.Dir+"x" },
		"another monitor":    func(h *vmm.Handle) { h.Monitor += "x" },
	} {
		other := h
		change(&other)
		if _, err := f.New().Adopt(t.Context(), other); !errors.Is(err, vmm.ErrGone) {
			t.Errorf("%s: got %v, want ErrGone", name, err)
		}
	}

	if err := adopted.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.expectGone(t, m)
	f.expectGone(t, adopted)
}

// testConsole floods the console and finds the end of it, more than once.
func (f Factory) testConsole(t *testing.T, s snapshot) {
	m := f.restore(t, f.restoreSpec(t, s))
	g := dialGuest(t, m)
	g.expect("console 200000", "ok")
	for range 2 {
		text, err := m.Console(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > 64<<10 || !strings.HasSuffix(strings.ReplaceAll(text, "\r", ""), strings.Repeat("0123456789abcde\n", 100)) {
			t.Fatalf("console of %d bytes ends with %q", len(text), text[max(0, len(text)-100):])
		}
	}
	g.expect("ping", "pong ")
}

// testNoSnapshotOfACopy: a copy's memory is private and nowhere in a file.
func (f Factory) testNoSnapshotOfACopy(t *testing.T, s snapshot) {
	m := f.restore(t, f.restoreSpec(t, s))
	w, err := os.Create(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := m.Snapshot(t.Context(), w); err == nil {
		t.Error("a restored machine was snapshot")
	}
	dialGuest(t, m).expect("ping", "pong ") // and it still runs
}

// restore starts a copy and kills it at the end of the test.
func (f Factory) restore(t testing.TB, spec vmm.Spec) vmm.Machine {
	t.Helper()
	m, err := f.New().Restore(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	killAtEnd(t, m)
	return m
}

func (f Factory) boot(t testing.TB, spec vmm.Spec) vmm.Machine {
	t.Helper()
	m, err := f.New().Boot(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	killAtEnd(t, m)
	return m
}

func killAtEnd(t testing.TB, m vmm.Machine) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := m.Kill(ctx); err != nil {
			t.Error(err)
		}
	})
}

// expectGone waits for the end of a machine and asks everything of it.
func (f Factory) expectGone(t *testing.T, m vmm.Machine) {
	t.Helper()
	select {
	case <-m.Done():
	case <-time.After(patience):
		t.Fatal("the machine did not end")
	}
	_, dialErr := m.DialGuest(t.Context())
	_, consoleErr := m.Console(t.Context())
	_, timeErr := m.CPUTime()
	_, adoptErr := f.New().Adopt(t.Context(), m.Handle())
	for name, err := range map[string]error{
		"DialGuest": dialErr, "Console": consoleErr, "CPUTime": timeErr, "Adopt": adoptErr,
		"Snapshot": m.Snapshot(t.Context(), nil), "Continue": m.Continue(t.Context()),
		"Suspend": m.Suspend(t.Context(), nil, nil),
	} {
		if !errors.Is(err, vmm.ErrGone) {
			t.Errorf("%s of a dead machine: got %v, want ErrGone", name, err)
		}
	}
}
