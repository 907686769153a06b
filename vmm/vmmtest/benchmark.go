package vmmtest

import (
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
	for name, times := range map[string][]time.Duration{"run": run, "answer": answer, "cpu": used} {
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

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
