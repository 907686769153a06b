package guest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest"
	"github.com/eqvps/eqvps/guest/agent"
)

// The agent runs in this process, as far as it can: commands are real, in
// cgroups of their own, and orphans come to this process as they come to PID 1.
// So nothing here may wait for children on its own (os/exec).
func TestMain(m *testing.M) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	// Commands must not inherit what this process has inherited.
	for fd := 3; fd < 1024; fd++ {
		unix.CloseOnExec(fd)
	}
	os.Exit(m.Run())
}

// machine is a guest whose port outlives its hosts.
type machine struct {
	mu      sync.Mutex
	changed sync.Cond
	conn    net.Conn

	cgroups    string
	renewed    []agent.Identity
	onRenew    func()
	renewFails error
	clock      time.Time
}

// dial puts a new host at the port.
func (m *machine) dial(context.Context) (net.Conn, error) {
	host, port := net.Pipe()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil {
		m.conn.Close()
	}
	m.conn = port
	m.changed.Broadcast()
	return host, nil
}

// take is what the machine does with an identity.
func (m *machine) take(id agent.Identity) error {
	m.renewed = append(m.renewed, id)
	if m.onRenew != nil {
		m.onRenew()
	}
	return m.renewFails
}

func (m *machine) use(do func(net.Conn) (int, error)) (int, error) {
	m.mu.Lock()
	for m.conn == nil {
		m.changed.Wait()
	}
	c := m.conn
	m.mu.Unlock()
	n, err := do(c)
	if err == nil || n > 0 {
		return n, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn == c {
		m.conn = nil
	}
	return 0, agent.ErrHostGone
}

func (m *machine) Read(p []byte) (int, error) {
	return m.use(func(c net.Conn) (int, error) { return c.Read(p) })
}

func (m *machine) Write(p []byte) (int, error) {
	for {
		if n, err := m.use(func(c net.Conn) (int, error) { return c.Write(p) }); err == nil {
			return n, nil
		}
	}
}

// cgroupRoot is where this host has cgroup v2.
func cgroupRoot(t *testing.T) string {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(dir + "/cgroup.controllers"); err == nil {
			return dir
		}
	}
	t.Fatal("this host has no cgroup v2 mounted")
	return ""
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir, err := os.MkdirTemp(cgroupRoot(t), "eqvps-guest-test-")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{cgroups: dir}
	m.changed.L = &m.mu
	env := filepath.Join(t.TempDir(), "environment")
	base := "# the image's\nPATH=" + os.Getenv("PATH") + "\nHOME=/root\nIMAGE=debian\n"
	if err := os.WriteFile(env, []byte(base), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := agent.New(agent.Config{
		Version: guest.Version, CgroupDir: dir, Environment: env, SpoolDir: t.TempDir(), OOMScore: -1,
		Renew:    m.take,
		SetClock: func(to time.Time) error { m.clock = to; return nil },
		Shutdown: func() {},
	})
	if err != nil {
		t.Fatal(err)
	}
	go a.Run(m)
	t.Cleanup(func() { m.clean(t) })
	return m
}

// groups lists the cgroups of commands.
func (m *machine) groups() (names []string) {
	entries, _ := os.ReadDir(m.cgroups)
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// clean ends what commands have left and fails if a cgroup cannot be removed.
func (m *machine) clean(t *testing.T) {
	_ = os.WriteFile(m.cgroups+"/cgroup.kill", []byte("1"), 0)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		for _, g := range m.groups() {
			_ = unix.Rmdir(m.cgroups + "/" + g)
		}
		err := unix.Rmdir(m.cgroups)
		if err == nil || err == unix.ENOENT {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%s: %v", m.cgroups, err)
			return
		}
	}
}

func (m *machine) connect(t *testing.T) *guest.Client {
	t.Helper()
	c, err := guest.Connect(t.Context(), m.dial)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func (m *machine) renew(t *testing.T, env map[string]string) *guest.Client {
	t.Helper()
	c, err := guest.Renew(t.Context(), m.dial, guest.Identity{Hostname: "sb-1", Env: env})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// result is all that a command gives.
type result struct {
	Out, Err string
	eqvps.ExitStatus
}

func try(c *guest.Client, ctx context.Context, req eqvps.ExecRequest) (result, error) {
	var mu sync.Mutex
	var out, errs strings.Builder
	st, err := c.Exec(ctx, req, func(s eqvps.Stream, p []byte) error {
		mu.Lock()
		defer mu.Unlock()
		if s == eqvps.Stderr {
			errs.Write(p)
		} else {
			out.Write(p)
		}
		return nil
	})
	st.Duration = 0
	return result{out.String(), errs.String(), st}, err
}

func run(t *testing.T, c *guest.Client, req eqvps.ExecRequest) result {
	t.Helper()
	res, err := try(c, t.Context(), req)
	if err != nil {
		t.Fatalf("%+v: %v", req, err)
	}
	return res
}

func sh(t *testing.T, c *guest.Client, line string) result {
	t.Helper()
	return run(t, c, eqvps.ExecRequest{Command: line})
}

// wait polls until cond holds.
func wait(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain until " + what)
		}
	}
}

// alive reports whether a process runs; a zombie does not.
func alive(pid string) bool {
	b, err := os.ReadFile("/proc/" + strings.TrimSpace(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

var errStop = errors.New("enough")

type failing struct{ r io.Reader }

func (f failing) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err == io.EOF {
		err = errStop
	}
	return n, err
}
