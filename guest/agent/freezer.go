package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

// freezeWait bounds the wait for processes to stand still. One in the kernel's
// hands, e.g. in a disk access, comes to rest after it.
const freezeWait = 5 * time.Second

// freezer stops and continues the processes of the sandbox. They are the
// commands' and what those have started; and in a machine of the sandbox's own,
// where it may make cgroups as it likes and move its processes to any, all but
// the agent.
type freezer struct {
	groups *cgroups
	// root is the top of the machine's cgroups, which holds the agent; "" where
	// the machine is not the sandbox's alone.
	root string

	mu     sync.Mutex
	frozen []string // cgroups to thaw
}

// freeze returns when no process runs, or with an error when that cannot be
// had; thaw is to be called then as well.
func (f *freezer) freeze() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	dirs := []string{f.groups.dir}
	if f.root != "" {
		if err := f.collect(); err != nil {
			return err
		}
		var err error
		if dirs, err = subgroups(f.root); err != nil {
			return err
		}
	}
	for _, dir := range dirs {
		// What the sandbox itself has frozen is not ours to thaw.
		if b, err := os.ReadFile(filepath.Join(dir, "cgroup.freeze")); err != nil || bytes.HasPrefix(b, []byte("1")) {
			continue
		}
		f.frozen = append(f.frozen, dir)
		if err := setFrozen(dir, true); err != nil {
			return err
		}
	}
	for deadline := time.Now().Add(freezeWait); ; time.Sleep(time.Millisecond) {
		i := slices.IndexFunc(f.frozen, func(dir string) bool { return !isFrozen(dir) })
		if i < 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the processes of %s do not come to rest", f.frozen[i])
		}
	}
}

// thaw lets everything go on that freeze has stopped.
func (f *freezer) thaw() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, dir := range f.frozen {
		if err := setFrozen(dir, false); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	f.frozen = nil
	return errors.Join(errs...)
}

// collect moves the processes that share the agent's cgroup, which cannot be
// frozen, into one that can, and the agent out of any other. Processes that
// keep breeding there are followed for a few rounds.
func (f *freezer) collect() error {
	procs := filepath.Join(f.root, "cgroup.procs")
	if err := os.WriteFile(procs, []byte("0"), 0); err != nil {
		return err
	}
	var g *cgroup
	for range 10 {
		b, err := os.ReadFile(procs)
		if err != nil {
			return err
		}
		moved := false
		for line := range bytes.Lines(b) {
			pid, err := strconv.Atoi(string(bytes.TrimSpace(line)))
			if err != nil || pid == os.Getpid() || isKernel(pid) {
				continue
			}
			if g == nil {
				if g, err = f.groups.take(); err != nil {
					return err
				}
				defer f.groups.release(g)
			}
			// A process that has ended meanwhile is no loss.
			moved = g.write("cgroup.procs", strconv.Itoa(pid)) == nil || moved
		}
		if !moved {
			break
		}
	}
	return nil
}

// isKernel reports whether a process is a thread of the kernel: those are the
// children of process 2.
func isKernel(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	rest := b[bytes.LastIndexByte(b, ')')+1:] // the name may hold anything
	fields := bytes.Fields(rest)
	return pid == 2 || len(fields) > 1 && string(fields[1]) == "2"
}

func subgroups(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, filepath.Join(root, e.Name()))
		}
	}
	return dirs, nil
}

func setFrozen(dir string, on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte(value), 0)
}

// isFrozen reports whether nothing in a cgroup runs. One that has gone has
// nothing that could.
func isFrozen(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	return bytes.Contains(b, []byte("frozen 1"))
}
