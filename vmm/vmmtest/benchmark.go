package vmmtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eqvps/eqvps/vmm"
)

// BenchmarkRestore restores one snapshot of a 1 GiB machine again and again,
// one after another, and reports the median and the 95th percentile of the
// time until Restore returned ("run") and until the guest answered a first
// line ("answer"), the monitor's processor time at that moment and, for the
// last machine, its share of the host's memory 1 s later. It also reports the
// time that sealing the memory took.
func BenchmarkRestore(b *testing.B, f Factory) {
	s := f.benchmarkSnapshot(b)
	var run, answer, used []time.Duration
	var last vmm.Machine
	for b.Loop() {
		if last != nil {
			last.Kill(b.Context())
		}
		spec := f.restoreSpec(b, s)
		spec.MemoryMiB, spec.VCPUs = benchmarkMemoryMiB, 1
		begin := time.Now()
		m, err := f.New().Restore(b.Context(), spec)
		if err != nil {
			b.Fatal(err)
		}
		run = append(run, time.Since(begin))
		dialGuest(b, m).conn.Close()
		answer = append(answer, time.Since(begin))
		cpu, err := m.CPUTime()
		if err != nil {
			b.Fatal(err)
		}
		used = append(used, cpu)
		last = m
	}
	time.Sleep(time.Second) // the guest goes idle
	b.ReportMetric(pss(b, last.Handle().PID), "idle-MiB")
	last.Kill(b.Context())
	reportTimes(b, map[string][]time.Duration{"run": run, "answer": answer, "cpu": used})
}

func reportTimes(b *testing.B, all map[string][]time.Duration) {
	for name, times := range all {
		slices.Sort(times)
		b.ReportMetric(milliseconds(times[len(times)/2]), name+"-p50-ms")
		b.ReportMetric(milliseconds(times[len(times)*95/100]), name+"-p95-ms")
	}
}

const benchmarkMemoryMiB = 1024

func (f Factory) benchmarkSnapshot(b *testing.B) snapshot {
	dir := b.TempDir()
	s := snapshot{base: filepath.Join(dir, "base"), upper: filepath.Join(dir, "upper")}
	writeDisk(b, s.base, "base")
	writeDisk(b, s.upper, "upper")
	spec := f.bootSpec(b, dir)
	spec.MemoryMiB, spec.VCPUs = benchmarkMemoryMiB, 1
	spec.Disks = s.disks(s.upper)
	m := f.boot(b, spec)
	dialGuest(b, m).conn.Close()
	time.Sleep(time.Second) // the guest finishes what it does after its start
	var err error
	if s.state, err = os.Create(filepath.Join(dir, "state")); err != nil {
		b.Fatal(err)
	}
	begin := time.Now()
	if err := m.Snapshot(b.Context(), s.state); err != nil {
		b.Fatal(err)
	}
	frozen := time.Since(begin)
	m.Kill(b.Context())
	begin = time.Now()
	if s.memory, err = vmm.SealMemory(spec.MemoryFile); err != nil {
		b.Fatal(err)
	}
	b.Logf("snapshot in %v, memory sealed in %v", frozen, time.Since(begin))
	return s
}

// pss is a process's proportional share of the host's memory in MiB.
func pss(b *testing.B, pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kib float64
		if _, err := fmt.Sscanf(line, "Pss: %f kB", &kib); err == nil {
			return kib / 1024
		}
	}
	b.Fatal("smaps_rollup tells no Pss")
	return 0
}

// runSize is a run whose pages lie in a file.
type runSize struct {
	address uint64
	size    int
}

// BenchmarkSuspend restores a snapshot of a 1 GiB machine, lets the guest write
// 100 MiB, puts it away into a file and brings it back, again and again. It
// reports the median and the 95th percentile of the time until the guest
// answered after the plain restore ("restore"), until Suspend returned and its
// files were synced ("suspend"), and until the guest answered again ("resume"),
// and how much memory was put away.
func BenchmarkSuspend(b *testing.B, f Factory) {
	const dirtyMiB = 100
	s := f.benchmarkSnapshot(b)
	var restored, away, back []time.Duration
	size := 0.0
	for b.Loop() {
		spec := f.restoreSpec(b, s)
		spec.MemoryMiB, spec.VCPUs = benchmarkMemoryMiB, 1
		begin := time.Now()
		m, err := f.New().Restore(b.Context(), spec)
		if err != nil {
			b.Fatal(err)
		}
		g := dialGuest(b, m)
		restored = append(restored, time.Since(begin))
		g.expect(fmt.Sprintf("fill %d", dirtyMiB), "ok")
		g.conn.Close()

		pages, err := os.Create(filepath.Join(b.TempDir(), "pages"))
		if err != nil {
			b.Fatal(err)
		}
		spec.State = stateFile(b)
		begin = time.Now()
		var runs []runSize
		err = m.Suspend(b.Context(), spec.State, func(address uint64, p []byte) error {
			runs = append(runs, runSize{address, len(p)})
			_, err := pages.Write(p)
			return err
		})
		if err = errors.Join(err, pages.Sync(), spec.State.Sync()); err != nil {
			b.Fatal(err)
		}
		away = append(away, time.Since(begin))
		m.Kill(b.Context())
		if info, err := pages.Stat(); err == nil {
			size = float64(info.Size()) / (1 << 20)
		}

		spec.Dir = b.TempDir()
		spec.Pages = func(put vmm.PageFunc) error {
			var offset int64
			buf := make([]byte, vmm.MaxPages)
			for _, r := range runs {
				p := buf[:r.size]
				if _, err := pages.ReadAt(p, offset); err != nil {
					return err
				}
				if err := put(r.address, p); err != nil {
					return err
				}
				offset += int64(len(p))
			}
			return nil
		}
		begin = time.Now()
		if m, err = f.New().Restore(b.Context(), spec); err != nil {
			b.Fatal(err)
		}
		dialGuest(b, m).conn.Close()
		back = append(back, time.Since(begin))
		m.Kill(b.Context())
		pages.Close()
		os.Remove(pages.Name())
	}
	b.ReportMetric(size, "away-MiB")
	reportTimes(b, map[string][]time.Duration{"restore": restored, "suspend": away, "resume": back})
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
