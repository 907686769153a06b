package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// cgroups hands out a cgroup (v2) per command below one parent. One is made
// ahead, so that a command does not wait for it. Those with processes left in
// them are removed once they are empty, when a later command ends.
type cgroups struct {
	dir string // the parent

	mu    sync.Mutex
	next  int
	spare *cgroup
	left  []string // names of groups to remove; each holds at least one process, so pids.max bounds them
}

// cgroup is one command's.
type cgroup struct {
	name string
	fd   int // its folder
}

// newCgroups uses the folder dir, which exists.
func newCgroups(dir string) *cgroups { return &cgroups{dir: dir} }

func (c *cgroups) take() (*cgroup, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.spare; g != nil {
		c.spare = nil
		return g, nil
	}
	return c.make()
}

func (c *cgroups) make() (*cgroup, error) {
	for {
		c.next++
		name := strconv.Itoa(c.next)
		path := filepath.Join(c.dir, name)
		err := os.Mkdir(path, 0o755)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		fd, err := unix.Open(path, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		g := &cgroup{name, fd}
		// One command dies as a whole; absent without the memory controller.
		_ = g.write("memory.oom.group", "1")
		return g, nil
	}
}

// release closes g and removes it now or later; it also makes the next spare.
func (c *cgroups) release(g *cgroup) {
	_ = unix.Close(g.fd)
	c.mu.Lock()
	defer c.mu.Unlock()
	left := append(c.left, g.name)
	c.left = nil
	for _, name := range left {
		if unix.Rmdir(filepath.Join(c.dir, name)) == unix.EBUSY {
			c.left = append(c.left, name)
		}
	}
	if c.spare == nil {
		c.spare, _ = c.make()
	}
}

// killAll ends every command and everything they have left. The spare group
// goes too: a kernel that closes the race between cgroup.kill and fork may kill
// what is later started into a group that was killed once, even empty.
func (c *cgroups) killAll() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.spare; g != nil {
		_ = unix.Close(g.fd)
		_ = unix.Rmdir(filepath.Join(c.dir, g.name))
		c.spare = nil
	}
	if err := os.WriteFile(filepath.Join(c.dir, "cgroup.kill"), []byte("1"), 0); err != nil {
		return err
	}
	var err error
	c.spare, err = c.make()
	return err
}

// kill ends every process in the group, whatever it has done to detach itself.
func (g *cgroup) kill() error { return g.write("cgroup.kill", "1") }

// oomKilled reports whether the kernel has killed in the group for want of
// memory.
func (g *cgroup) oomKilled() bool {
	b, err := g.read("memory.events")
	if err != nil {
		return false
	}
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			return !bytes.Equal(bytes.TrimSpace(v), []byte("0"))
		}
	}
	return false
}

func (g *cgroup) write(file, value string) error {
	fd, err := unix.Openat(g.fd, file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

func (g *cgroup) read(file string) ([]byte, error) {
	fd, err := unix.Openat(g.fd, file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	b := make([]byte, 4096)
	n, err := unix.Read(fd, b)
	return b[:max(n, 0)], err
}
