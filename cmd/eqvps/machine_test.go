package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/vmm"
	"github.com/eqvps/eqvps/wire"
)

// serveVariable makes this test program a server of the data folder it names,
// so that a test can kill a server without killing itself.
const serveVariable = "EQVPS_TEST_SERVE"

// machineData is the data folder of all machine tests: its templates are made
// once.
var machineData string

func TestMain(m *testing.M) {
	if data := os.Getenv(serveVariable); data != "" {
		serveForTest(data)
		return
	}
	dir, err := os.MkdirTemp("", "eqvps-test-")
	if err != nil {
		panic(err)
	}
	machineData = filepath.Join(dir, "data")
	code := m.Run()
	for _, what := range leftovers(machineData) {
		fmt.Fprintln(os.Stderr, "left behind:", what)
		code = max(code, 1)
	}
	if err := os.RemoveAll(dir); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// serveForTest serves until standard input ends or it is asked to stop, after
// a line that tells the address.
func serveForTest(data string) {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	cfg := testConfig(data, os.Stderr)
	cfg.Standby = 1
	if step := os.Getenv(killVariable); step != "" {
		// No machine on standby: its steps would be taken for those of a sandbox.
		cfg.Standby, cfg.Step = 0, killAt(step)
	}
	s, err := StartServer(context.Background(), cfg)
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println("serving", s.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	<-ctx.Done()
	if err := s.Close(context.Background()); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func testConfig(data string, log io.Writer) ServerConfig {
	return ServerConfig{
		Listen: "127.0.0.1:0", Data: data, Images: os.Getenv("EQVPS_IMAGES"), SlotPool: 2,
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

// startServer starts a server in this process; it is stopped when the test ends.
func startServer(t *testing.T) (*Server, *client.Client) {
	t.Helper()
	s, err := StartServer(t.Context(), testConfig(machineData, t.Output()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s, adminClient(t, s.Addr())
}

func adminClient(t *testing.T, addr string) *client.Client {
	t.Helper()
	c, err := client.New("http://"+addr, adminSecret(t))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// adminSecret is the administrator's token.
func adminSecret(t *testing.T) string {
	t.Helper()
	secret, err := os.ReadFile(filepath.Join(machineData, adminTokenName))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(secret))
}

// newSandbox creates a sandbox that is deleted when the test ends.
func newSandbox(t *testing.T, c *client.Client) string {
	t.Helper()
	sb, err := c.Create(t.Context(), wire.CreateSandbox{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := c.Delete(context.Background(), sb.ID); err != nil {
			t.Error(err)
		}
	})
	return sb.ID
}

// shell runs a command that must succeed and returns what it printed.
func shell(t *testing.T, c *client.Client, id, command string) string {
	t.Helper()
	r, err := c.Exec(t.Context(), id, wire.ExecRequest{Command: command, Options: wire.Options{Timeout: 55}})
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	if r.ExitCode != 0 {
		t.Fatalf("%s: exit code %d\n%s%s", command, r.ExitCode, r.Stdout, r.Stderr)
	}
	return strings.TrimSpace(r.Stdout)
}

// Kind of fault: the image lacks what programs take for granted: a locale, a
// home, shared memory, open files, device nodes.
func TestWhatIsInside(t *testing.T) {
	_, c := startServer(t)
	id := newSandbox(t, c)
	out := shell(t, c, id, `python3 --version; node --version; git --version; curl --version | head -1; uname -r; id -u`)
	lines := strings.Split(out, "\n")
	host, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != 6 || !strings.HasPrefix(lines[0], "Python 3.12.") || !strings.HasPrefix(lines[1], "v22.") ||
		!strings.HasPrefix(lines[2], "git version ") || !strings.HasPrefix(lines[3], "curl ") ||
		lines[4] == strings.TrimSpace(string(host)) || lines[5] != "0" {
		t.Errorf("inside a sandbox:\n%s", out)
	}
	for command, want := range map[string]string{
		"locale charmap":                      "UTF-8",
		"echo $HOME $USER":                    "/root root",
		"stat -c %U $HOME":                    "root",
		"test -n \"$TERM\"; echo $?":          "0",
		"pwd":                                 "/root",
		"python3 -c 'print(\"é\")'":           "é",
		"stat -fc %T /tmp":                    "overlayfs",
		"nproc":                               "1",
		"date +%Z":                            "UTC",
		"getent hosts localhost | wc -l":      "1",
		"ls /dev/null /dev/ptmx | wc -l":      "2",
		"readlink /dev/fd":                    "/proc/self/fd",
		"test $(ulimit -n) -ge 4096; echo $?": "0",
		"test $(df -m --output=size /dev/shm | tail -1) -ge 256; echo $?": "0",
	} {
		if got := shell(t, c, id, command); got != want {
			t.Errorf("%s says %q, want %q", command, got, want)
		}
	}
	if _, err := c.Ping(t.Context(), id); err != nil {
		t.Error(err)
	}
}

func TestExitCodes(t *testing.T) {
	_, c := startServer(t)
	id := newSandbox(t, c)
	for _, w := range []struct {
		command string
		code    int
		signal  string
	}{
		{command: "exit 7", code: 7},
		{command: "kill -9 $$", code: 137, signal: "SIGKILL"},
		{command: "no-such-program-here", code: 127},
		{command: "cat", code: 0}, // standard input is at its end
	} {
		r, err := c.Exec(t.Context(), id, wire.ExecRequest{Command: w.command})
		if err != nil {
			t.Errorf("%s: %v", w.command, err)
			continue
		}
		signal := ""
		if r.Signal != nil {
			signal = *r.Signal
		}
		if r.ExitCode != w.code || r.Stdout != "" || signal != w.signal || r.TimedOut {
			t.Errorf("%s: code %d, stdout %q, signal %q, timed out %v; want %+v", w.command, r.ExitCode, r.Stdout, signal, r.TimedOut, w)
		}
	}
}

// TestTwinsAreStrangers: machines restored from one snapshot share nothing
// random, and know the time although the snapshot is old.
func TestTwinsAreStrangers(t *testing.T) {
	_, c := startServer(t)
	a, b := newSandbox(t, c), newSandbox(t, c)
	for _, command := range []string{
		"head -c 16 /dev/urandom | xxd -p", "cat /etc/machine-id", "cat /proc/sys/kernel/random/boot_id", "hostname",
		"python3 -c 'import uuid; print(uuid.uuid4())'", "python3 -c 'import random; print(random.random())'",
		"python3 -c 'print(hash(\"a\"))'", "node -e 'console.log(Math.random())'", "echo $RANDOM$RANDOM$RANDOM",
		"mktemp -u",
	} {
		x, y := shell(t, c, a, command), shell(t, c, b, command)
		if x == y || x == "" {
			t.Errorf("%s says %q in one sandbox and %q in the other", command, x, y)
		}
	}
	before := time.Now()
	seconds, err := strconv.ParseFloat(shell(t, c, a, "date +%s.%N"), 64)
	if err != nil {
		t.Fatal(err)
	}
	guest := time.UnixMicro(int64(seconds * 1e6))
	if guest.Before(before.Add(-time.Second)) || guest.After(time.Now().Add(time.Second)) {
		t.Errorf("the guest says %s, the host %s", guest, before)
	}
}

// TestEightTemplatesAtOnce: cold boots side by side all come up.
func TestEightTemplatesAtOnce(t *testing.T) {
	s, _ := startServer(t)
	errs := make([]error, 8)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			tariff := eqvps.Tariff{Name: "t", MilliCPU: 1000, MemoryMiB: 320 + 16*i, DiskMiB: 256}
			errs[i] = s.node.Warm(t.Context(), "", tariff)
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("template %d: %v", i, err)
		}
	}
}

// Kind of fault: installers fail, or what they install is not found.
func TestPackagesCanBeInstalled(t *testing.T) {
	_, c := startServer(t)
	id := newSandbox(t, c)
	// Where the host does not reach its registry, a guest cannot.
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	_, hostErr := exec.CommandContext(ctx, "npm", "view", "semver", "version").Output()
	for _, req := range []wire.ExecRequest{
		{Command: "pip install -q --no-compile tabulate"},
		{Command: "npm install -g --silent --no-audit --no-fund semver"},
		{Argv: []string{"sh", "-c", "semver 1.2.3; echo a | tabulate"}}, // not in the same command, and without a login shell
	} {
		req.Timeout = 55
		began := time.Now()
		r, err := c.Exec(t.Context(), id, req)
		if err != nil {
			t.Fatal(err)
		}
		if (r.ExitCode == 0) != (hostErr == nil) {
			t.Errorf("%+v: exit code %d in the sandbox, %v on the host\n%s", req, r.ExitCode, hostErr, r.Stderr)
		}
		t.Logf("%s%v took %s", req.Command, req.Argv, time.Since(began).Round(100*time.Millisecond))
	}
}

// TestHundredSandboxesLeaveNothing creates and deletes 100, four at a time.
func TestHundredSandboxesLeaveNothing(t *testing.T) {
	s, c := startServer(t)
	if err := s.Prepare(t.Context(), eqvps.DefaultTariff); err != nil {
		t.Fatal(err)
	}
	work := make(chan int, 100)
	for i := range cap(work) {
		work <- i
	}
	close(work)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range work {
				sb, err := c.Create(t.Context(), wire.CreateSandbox{})
				if err != nil {
					t.Error(err)
					continue
				}
				if _, err := c.Exec(t.Context(), sb.ID, wire.ExecRequest{Command: "true"}); err != nil {
					t.Error(err)
				}
				if _, err := c.Delete(t.Context(), sb.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	left := leftoverMachines(machineData)
	if len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, "\n"))
	}
}

// TestKilledServer: sandboxes outlive a server that is killed, and the next
// one takes them over.
func TestKilledServer(t *testing.T) {
	server, addr := spawnServer(t)
	c := adminClient(t, addr)
	var ids []string
	for range 5 {
		sb, err := c.Create(t.Context(), wire.CreateSandbox{Env: map[string]string{"KEPT": "still here"}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, sb.ID)
		shell(t, c, sb.ID, "echo mine > /root/file; (sleep 600 & )")
	}
	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = server.Wait()

	_, c = startServer(t)
	list, err := c.List(t.Context(), client.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for _, sb := range list.Data {
		listed[sb.ID] = sb.State
	}
	for _, id := range ids {
		if listed[id] != "running" {
			t.Errorf("%s is %q after the restart", id, listed[id])
		}
		if got := shell(t, c, id, "cat /root/file; echo $KEPT; pgrep -fc '[s]leep 600'"); got != "mine\nstill here\n1" {
			t.Errorf("%s says %q", id, got)
		}
		if _, err := c.Delete(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if len(listed) != len(ids) {
		t.Errorf("%d sandboxes are listed, want %d", len(listed), len(ids))
	}
	if left := leftoverMachines(machineData); len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, "\n"))
	}
}

// TestMachineLostWhileServerIsAway: what died meanwhile ends with a reason and
// its resources are freed.
func TestMachineLostWhileServerIsAway(t *testing.T) {
	server, addr := spawnServer(t)
	c := adminClient(t, addr)
	sb, err := c.Create(t.Context(), wire.CreateSandbox{})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = server.Wait()
	pids := monitors(machineData) // one may stand by
	if len(pids) == 0 {
		t.Fatal("no monitor has outlived the server")
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}

	_, c = startServer(t)
	got, err := c.Get(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got.State != "deleted" || got.Reason == nil || *got.Reason != "host_lost" {
		t.Errorf("the sandbox is %s (%v)", got.State, got.Reason)
	}
	_, err = c.Exec(t.Context(), sb.ID, wire.ExecRequest{Command: "true"})
	if eqvps.ErrorCode(err) != eqvps.CodeSandboxEnded {
		t.Errorf("exec: %v", err)
	}
	if left := leftoverMachines(machineData); len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, "\n"))
	}
}

// spawnServer starts a server in a process of its own.
func spawnServer(t *testing.T) (*exec.Cmd, string) {
	t.Helper()
	cmd, line := spawnProcess(t)
	addr, ok := strings.CutPrefix(line, "serving ")
	if !ok {
		t.Fatalf("the server says %q", line)
	}
	return cmd, addr
}

// spawnProcess starts a server in a process of its own, with more variables,
// and returns the first line it prints: "" when it ends before one.
func spawnProcess(t *testing.T, env ...string) (cmd *exec.Cmd, line string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(exe)
	cmd.Env = append(os.Environ(), serveVariable+"="+machineData)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = t.Output()
	if _, err := cmd.StdinPipe(); err != nil { // held open: its end is the order to stop
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err = bufio.NewReader(out).ReadString('\n')
	if err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return cmd, strings.TrimSpace(line)
}

// stopServer stops a server that spawnServer has started.
func stopServer(t *testing.T, server *exec.Cmd) {
	t.Helper()
	if err := server.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := server.Wait(); err != nil {
		t.Fatal(err)
	}
}

// monitors returns the monitors of a data folder.
func monitors(data string) []int {
	var pids []int
	envs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, env := range envs {
		b, err := os.ReadFile(env)
		if err == nil && bytes.Contains(b, []byte(vmm.DirVariable+"="+data+"/")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(env)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// leftoverMachines lists what sandboxes of a data folder have left on the host.
func leftoverMachines(data string) []string {
	var left []string
	for _, pid := range monitors(data) {
		left = append(left, fmt.Sprintf("monitor %d", pid))
	}
	folders, _ := filepath.Glob(filepath.Join(data, "machines", "*"))
	left = append(left, folders...)
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, data) {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	// The folder's own part of the tree: others may use this host as well.
	sum := sha256.Sum256([]byte(data))
	own := "eqvps/" + hex.EncodeToString(sum[:5]) + "/sb_*"
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + own)
	unified, _ := filepath.Glob("/sys/fs/cgroup/" + own)
	return append(append(left, groups...), unified...)
}

// leftovers lists all that a data folder has left on the host once no server
// uses it.
func leftovers(data string) []string {
	left := leftoverMachines(data)
	records, _ := filepath.Glob("/run/eqvps/slots/*")
	for _, r := range records {
		b, _ := os.ReadFile(r)
		if bytes.Contains(b, []byte(data)) {
			left = append(left, "network slot "+r)
		}
	}
	return left
}
