package vmmtest

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/eqvps/eqvps/vmm"
)

// suspended is a machine that was put away.
type suspended struct {
	spec  vmm.Spec // of the machine, with its disks
	state *os.File
	runs  []run
}

type run struct {
	address uint64
	pages   []byte
}

// bytes is how much memory was put away.
func (s suspended) bytes() (n int) {
	for _, r := range s.runs {
		n += len(r.pages)
	}
	return n
}

// beyondMemory is what was put away besides main memory.
func (s suspended) beyondMemory() (b []byte) {
	for _, r := range s.runs {
		if r.address >= uint64(s.spec.MemoryMiB)<<20 {
			b = append(b, r.pages...)
		}
	}
	return b
}

// stateFile is where Suspend writes: it holds more than any state has.
func stateFile(t testing.TB) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteString(strings.Repeat("left from before", 1<<16)); err != nil {
		t.Fatal(err)
	}
	return f
}

// suspend puts a machine away, checks the form of what it passes on, and kills it.
func (f Factory) suspend(t testing.TB, m vmm.Machine, spec vmm.Spec) suspended {
	t.Helper()
	s := suspended{spec: spec, state: stateFile(t)}
	end := uint64(0)
	err := m.Suspend(t.Context(), s.state, func(address uint64, pages []byte) error {
		if address < end || address%vmm.PageSize != 0 || len(pages) == 0 || len(pages)%vmm.PageSize != 0 || len(pages) > vmm.MaxPages {
			t.Errorf("%d bytes at %#x follow on what ends at %#x", len(pages), address, end)
		}
		end = address + uint64(len(pages))
		s.runs = append(s.runs, run{address, bytes.Clone(pages)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// again is the spec that brings the machine back.
func (s suspended) again(t testing.TB, f Factory) vmm.Spec {
	t.Helper()
	spec := f.bootSpec(t, t.TempDir())
	spec.MemoryFile = ""
	spec.MemoryMiB, spec.VCPUs, spec.Disks, spec.Memory = s.spec.MemoryMiB, s.spec.VCPUs, s.spec.Disks, s.spec.Memory
	spec.State = s.state
	spec.Pages = func(put vmm.PageFunc) error {
		for _, r := range s.runs {
			if err := put(r.address, r.pages); err != nil {
				return err
			}
		}
		return nil
	}
	return spec
}

// testSuspend puts a copy away and brings it back, twice, the second time from
// another server; then it tries to bring back what is broken.
func (f Factory) testSuspend(t *testing.T, s snapshot) {
	spec := f.restoreSpec(t, s)
	m := f.restore(t, spec)
	g := dialGuest(t, m)
	g.expect("set first", "ok")
	g.expect("write vdb first", "ok")
	g.expect("count", "1")
	g.expect("fill 3", "ok")
	sum := g.ask("sum")
	first := f.suspend(t, m, spec)
	f.expectGone(t, m)
	if got := readDisk(t, spec.Disks[1].Path); got != "first" {
		t.Errorf("the disk of the suspended machine holds %q", got)
	}
	if n := first.bytes(); n < 3<<20 || n > 128<<20 {
		t.Errorf("%d bytes were put away of a machine that wrote 3 MiB", n)
	}

	spec = first.again(t, f)
	pages := spec.Pages
	m = nil
	spec.Pages = func(put vmm.PageFunc) error {
		if m != nil {
			t.Error("the machine runs before its pages are back")
		}
		return pages(put)
	}
	m = f.restore(t, spec)
	g = dialGuest(t, m)
	g.expect("get", "first")
	g.expect("sum", sum)
	g.expect("count", "2")
	g.expect("read vdb", "first")
	g.expect("read vda", "base")
	g.expect("set second", "ok")
	g.expect("write vdb second", "ok")
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	adopted, err := f.New().Adopt(t.Context(), m.Handle())
	if err != nil {
		t.Fatal(err)
	}
	second := f.suspend(t, adopted, spec)
	firmware := first.beyondMemory()
	if written := len(bytes.Trim(firmware, "\x00")) > 0; written != f.Firmware || !bytes.Equal(firmware, second.beyondMemory()) {
		t.Errorf("of %d bytes of firmware, written: %v, not all came back", len(firmware), written)
	}

	g = dialGuest(t, f.restore(t, second.again(t, f)))
	g.expect("get", "second")
	g.expect("sum", sum)
	g.expect("count", "3")
	g.expect("read vdb", "second")
	g.expect("cpus", "2")
	g.conn.Close()

	dialGuest(t, f.restore(t, f.restoreSpec(t, s))).expect("get", "template")
	t.Run("Broken", func(t *testing.T) { f.testBrokenSuspended(t, s, first) })
}

// testBrokenSuspended spoils a suspended machine and expects a clean refusal.
func (f Factory) testBrokenSuspended(t *testing.T, s snapshot, good suspended) {
	state, err := os.ReadFile(good.state.Name())
	if err != nil {
		t.Fatal(err)
	}
	withState := func(b []byte) func(*testing.T, *vmm.Spec) {
		return func(t *testing.T, spec *vmm.Spec) {
			spec.State = stateFile(t)
			if err := errors.Join(spec.State.Truncate(0), os.WriteFile(spec.State.Name(), b, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	withPages := func(pages func(put vmm.PageFunc) error) func(*testing.T, *vmm.Spec) {
		return func(_ *testing.T, spec *vmm.Spec) { spec.Pages = pages }
	}
	one := make([]byte, vmm.PageSize)
	broken := errors.New("the pages cannot be read")
	for name, spoil := range map[string]func(*testing.T, *vmm.Spec){
		"empty state":         withState(nil),
		"a byte of state":     withState(state[:1]),
		"half a state":        withState(state[:len(state)/2]),
		"state without end":   withState(state[:len(state)-1]),
		"garbage for state":   withState([]byte(strings.Repeat("garbage", 3000))),
		"a snapshot's state":  func(_ *testing.T, spec *vmm.Spec) { spec.State = s.state },
		"no pages at all":     func(_ *testing.T, spec *vmm.Spec) { spec.Pages = nil },
		"no state":            func(_ *testing.T, spec *vmm.Spec) { spec.State = nil },
		"pages fail":          withPages(func(vmm.PageFunc) error { return broken }),
		"unaligned address":   withPages(func(put vmm.PageFunc) error { return put(1, one) }),
		"half a page":         withPages(func(put vmm.PageFunc) error { return put(0, one[:100]) }),
		"outside of memory":   withPages(func(put vmm.PageFunc) error { return put(1<<40, one) }),
		"end of all numbers":  withPages(func(put vmm.PageFunc) error { return put(math.MaxUint64-vmm.PageSize+1, one) }),
		"refusal not noticed": withPages(func(put vmm.PageFunc) error { put(1, one); return nil }),
	} {
		t.Run(name, func(t *testing.T) {
			spec := good.again(t, f)
			spoil(t, &spec)
			m, err := f.New().Restore(t.Context(), spec)
			if err == nil {
				killAtEnd(t, m)
				t.Fatal("the machine was started")
			}
			t.Log(err)
			if name == "pages fail" && !errors.Is(err, broken) {
				t.Errorf("got %v, want what Pages said", err)
			}
			f.expectNothing(t, spec)
		})
	}
	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		spec := good.again(t, f)
		pages := spec.Pages
		spec.Pages = func(put vmm.PageFunc) error { cancel(); return pages(put) }
		m, err := f.New().Restore(ctx, spec)
		if err == nil {
			killAtEnd(t, m)
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		f.expectNothing(t, spec)
	})
}

// testContinue lets a machine run on after Suspend failed and after it did not.
// What the host says in between the guest hears afterwards. What becomes of the
// channel in between does not change what is put away.
func (f Factory) testContinue(t *testing.T, s snapshot) {
	spec := f.restoreSpec(t, s)
	m := f.restore(t, spec)
	g := dialGuest(t, m)
	g.expect("count", "1")
	if err := m.Continue(t.Context()); err != nil {
		t.Errorf("Continue of a running machine: %v", err)
	}
	full := errors.New("the disk is full")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i, failure := range []struct {
		page func() error
		want error
	}{
		{func() error { return full }, full},
		{func() error { cancel(); return nil }, context.Canceled},
	} {
		err := m.Suspend(ctx, stateFile(t), func(uint64, []byte) error { return failure.page() })
		if !errors.Is(err, failure.want) {
			t.Errorf("got %v, want %v", err, failure.want)
		}
		if err := m.Continue(t.Context()); err != nil {
			t.Fatal(err)
		}
		g.expect("count", []string{"2", "3"}[i])
	}

	if err := m.Suspend(t.Context(), stateFile(t), once(func() { g.send("count") })); err != nil {
		t.Fatal(err)
	}
	if err := m.Continue(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-g.lines; got != "4" {
		t.Errorf("the guest answers %q to what it was asked while it was stopped", got)
	}

	away := suspended{spec: spec, state: stateFile(t)}
	reconnect := once(func() {
		g.conn.Close()
		if _, err := m.DialGuest(t.Context()); err != nil {
			t.Error(err)
		}
	})
	err := m.Suspend(t.Context(), away.state, func(address uint64, pages []byte) error {
		away.runs = append(away.runs, run{address, bytes.Clone(pages)})
		return reconnect(address, pages)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Continue(t.Context()); err != nil {
		t.Fatal(err)
	}
	dialGuest(t, m).expect("count", "5")
	if err := m.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	dialGuest(t, f.restore(t, away.again(t, f))).expect("count", "5")
}

// once takes pages and calls f with the first of them.
func once(f func()) vmm.PageFunc {
	var do sync.Once
	return func(uint64, []byte) error { do.Do(f); return nil }
}

// testKilledWhileSuspending: a monitor that dies is noticed, and nothing hangs.
func (f Factory) testKilledWhileSuspending(t *testing.T, s snapshot) {
	m := f.restore(t, f.restoreSpec(t, s))
	dialGuest(t, m).expect("fill 3", "ok")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := m.Suspend(ctx, stateFile(t), func(uint64, []byte) error { return f.Terminate(m.Handle()) })
	if !errors.Is(err, vmm.ErrGone) {
		t.Errorf("got %v, want ErrGone", err)
	}
	f.expectGone(t, m)
}

// testNoMemoryFile boots a machine whose memory is nowhere and puts it away,
// twice.
func (f Factory) testNoMemoryFile(t *testing.T) {
	spec := f.bootSpec(t, t.TempDir())
	spec.MemoryFile = ""
	m := f.boot(t, spec)
	g := dialGuest(t, m)
	g.expect("set nowhere", "ok")
	g.expect("fill 3", "ok")
	sum := g.ask("sum")
	if err := m.Snapshot(t.Context(), stateFile(t)); err == nil {
		t.Error("a machine without a memory file was snapshot")
	}
	for _, count := range []string{"1", "2"} {
		g.expect("get", "nowhere")
		g.expect("sum", sum)
		g.expect("count", count)
		away := f.suspend(t, m, spec)
		if n := away.bytes(); n < 3<<20 || n > spec.MemoryMiB<<20*3/4 {
			t.Errorf("%d bytes were put away of a machine of %d MiB that is nearly idle", n, spec.MemoryMiB)
		}
		m = f.restore(t, away.again(t, f))
		g = dialGuest(t, m)
	}
	g.expect("get", "nowhere")
	g.expect("sum", sum)
	g.expect("count", "3")
}
