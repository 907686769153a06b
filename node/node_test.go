package node_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/agentbin"
	"github.com/eqvps/eqvps/image"
	"github.com/eqvps/eqvps/node"
	"github.com/eqvps/eqvps/vmm/qemu"
)

// images is the store that the machine tests take their image from.
func images(t testing.TB) *image.Store {
	t.Helper()
	dir := os.Getenv("EQVPS_IMAGES")
	if dir == "" {
		t.Fatal("set EQVPS_IMAGES to a folder with an image in it; `make test` does")
	}
	return image.Open(dir)
}

// newNode makes a node on real machines. dir is its data folder.
func newNode(t testing.TB, dir string, step func(string) error) *node.Node {
	t.Helper()
	return newNodeOf(t, dir, step, "")
}

// newNodeOf makes a node with another build of the agent: the same with
// something behind it.
func newNodeOf(t testing.TB, dir string, step func(string) error, build string) *node.Node {
	t.Helper()
	return newNodeWith(t, dir, func(c *node.Config) {
		c.Step, c.Agent = step, append(slices.Clip(c.Agent), build...)
	})
}

// newNodeWith makes a node with a configuration that is changed.
func newNodeWith(t testing.TB, dir string, change func(*node.Config)) *node.Node {
	t.Helper()
	agent, err := agentbin.Agent()
	if err != nil {
		t.Fatal(err)
	}
	cfg := node.Config{
		Dir: dir, Images: images(t), Monitor: qemu.New(), Agent: agent,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	change(&cfg)
	n, err := node.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// shared is a template that tests which change none have in common: making it
// takes most of a test's time.
var shared struct {
	once sync.Once
	dir  string
}

func TestMain(m *testing.M) {
	code := m.Run()
	if shared.dir != "" {
		os.RemoveAll(shared.dir)
	}
	os.Exit(code)
}

// dataDir is a data folder with a template of testTariff in it.
func dataDir(t testing.TB) string {
	t.Helper()
	shared.once.Do(func() {
		dir, err := os.MkdirTemp("", "eqvps-node-test-")
		if err != nil {
			t.Fatal(err)
		}
		n := newNode(t, dir, nil)
		defer closeNode(t, n)
		if err := n.Warm(t.Context(), "", testTariff); err != nil {
			t.Fatal(err)
		}
		shared.dir = dir
	})
	if shared.dir == "" {
		t.Fatal("there is no template")
	}
	dir := t.TempDir()
	files, err := filepath.Glob(filepath.Join(shared.dir, "templates", "*", "*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		to := filepath.Join(dir, strings.TrimPrefix(f, shared.dir))
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o700), os.Link(f, to)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// testTariff is small, so that its template is made quickly.
var testTariff = eqvps.Tariff{Name: "test", MilliCPU: 1000, MemoryMiB: 384, DiskMiB: 1024}

func closeNode(t testing.TB, n *node.Node) {
	t.Helper()
	if err := n.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func run(t testing.TB, m eqvps.Machine, command string) string {
	t.Helper()
	var out strings.Builder
	st, err := m.Exec(t.Context(), eqvps.ExecRequest{Command: command, Timeout: 50 * time.Second}, func(_ eqvps.Stream, p []byte) error {
		out.Write(p)
		return nil
	})
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	if st.Code != 0 {
		t.Fatalf("%s: exit code %d: %s", command, st.Code, out.String())
	}
	return strings.TrimSpace(out.String())
}

func TestMachineLife(t *testing.T) {
	dir := t.TempDir()
	n := newNode(t, dir, nil)
	defer closeNode(t, n)
	began := time.Now()
	if err := n.Warm(t.Context(), "", testTariff); err != nil {
		t.Fatal(err)
	}
	t.Log("template made in", time.Since(began))
	start := func(id string) eqvps.Machine {
		began := time.Now()
		m, err := n.Start(t.Context(), eqvps.StartMachine{ID: id, Tariff: testTariff, Env: map[string]string{"GREETING": "hello"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Log(id, "started in", time.Since(began))
		return m
	}
	a, b := start("sb_a"), start("sb_b")
	if got := run(t, a, `echo "$GREETING $(hostname)"`); got != "hello sb-a" {
		t.Errorf("got %q", got)
	}
	for _, command := range []string{
		"head -c 16 /dev/urandom | xxd -p", "cat /etc/machine-id", "cat /proc/sys/kernel/random/boot_id",
		"python3 -c 'import uuid; print(uuid.uuid4())'", "python3 -c 'import random; print(random.random())'",
		"node -e 'console.log(Math.random())'", "bash -c 'echo $RANDOM$RANDOM$RANDOM'",
	} {
		if x, y := run(t, a, command), run(t, b, command); x == y || x == "" {
			t.Errorf("%s says %q in one machine and %q in the other", command, x, y)
		}
	}
	for _, id := range []string{"sb_a", "sb_b"} {
		if err := n.Destroy(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "machines", "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestStandby: a machine that stood by is as fresh as one restored on demand,
// and belongs to its sandbox from the hand-over on, also for the next process.
func TestStandby(t *testing.T) {
	dir := t.TempDir()
	n := newNode(t, dir, nil)
	n.KeepReady(testTariff, 1)
	waitReady(t, n)
	a, err := n.Start(t.Context(), eqvps.StartMachine{ID: "sb_a", Tariff: testTariff, Env: map[string]string{"GREETING": "hello"}})
	if err != nil {
		t.Fatal(err)
	}
	if target, err := os.Readlink(filepath.Join(dir, "machines", "sb_a")); err != nil || !strings.HasPrefix(target, "standby-") {
		t.Errorf("the machine was not one that stood by: %q, %v", target, err)
	}
	if got := run(t, a, `echo "$GREETING $(hostname)"`); got != "hello sb-a" {
		t.Errorf("got %q", got)
	}
	waitReady(t, n)
	b, err := n.Start(t.Context(), eqvps.StartMachine{ID: "sb_b", Tariff: testTariff})
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"head -c 16 /dev/urandom | xxd -p", "cat /etc/machine-id", "cat /proc/sys/kernel/random/boot_id"} {
		if x, y := run(t, a, command), run(t, b, command); x == y || x == "" {
			t.Errorf("%s says %q in one machine and %q in the other", command, x, y)
		}
	}
	if got := run(t, b, "echo ${GREETING-unset}"); got != "unset" {
		t.Errorf("a variable of another sandbox is set: %q", got)
	}
	waitReady(t, n)
	for _, m := range []eqvps.Machine{a, b} {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}

	// The next process finds two sandboxes and one machine that is nobody's.
	next := newNode(t, dir, nil)
	ids, err := next.Records()
	if err != nil {
		t.Fatal(err)
	}
	if len(ids) != 3 {
		t.Fatalf("records: %v", ids)
	}
	again, err := next.Adopt(t.Context(), "sb_a")
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, again, `echo "$GREETING"`); got != "hello" {
		t.Errorf("after adoption: %q", got)
	}
	again.Close()
	for _, id := range ids {
		if err := next.Destroy(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "machines", "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	closeNode(t, next)
	closeNode(t, n)
}

// TestDamagedTemplateIsMadeAnew: whatever happened to a template on disk, the
// next start finds out and heals it.
func TestDamagedTemplateIsMadeAnew(t *testing.T) {
	dir := t.TempDir()
	n := newNode(t, dir, nil)
	if err := n.Warm(t.Context(), "", testTariff); err != nil {
		t.Fatal(err)
	}
	closeNode(t, n)
	templates, err := filepath.Glob(filepath.Join(dir, "templates", "*"))
	if err != nil || len(templates) != 1 {
		t.Fatal(templates, err)
	}
	for name, damage := range map[string]func(path string) error{
		"memory": func(path string) error { return os.Truncate(path, 4096) },
		"state": func(path string) error {
			fi, err := os.Stat(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, []byte(strings.Repeat("x", int(fi.Size()))), 0o600)
		},
	} {
		if err := damage(filepath.Join(templates[0], name)); err != nil {
			t.Fatal(err)
		}
		n := newNode(t, dir, nil)
		m, err := n.Start(t.Context(), eqvps.StartMachine{ID: "sb_a", Tariff: testTariff})
		if err != nil {
			t.Fatalf("with a damaged %s: %v", name, err)
		}
		if got := run(t, m, "echo fine"); got != "fine" {
			t.Errorf("with a damaged %s: %q", name, got)
		}
		m.Close()
		if err := n.Destroy(t.Context(), "sb_a"); err != nil {
			t.Error(err)
		}
		closeNode(t, n)
	}
}

// TestStaleTemplatesGo: what no start will ask for again takes no room.
func TestStaleTemplatesGo(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"tpl_old", "tpl_half.making"} {
		if err := os.MkdirAll(filepath.Join(dir, "templates", name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	closeNode(t, newNode(t, dir, nil))
	if left, _ := filepath.Glob(filepath.Join(dir, "templates", "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestUselessStandby: a machine that stood by and does not answer is replaced
// by one restored on demand.
func TestUselessStandby(t *testing.T) {
	dir := t.TempDir()
	var broken atomic.Bool
	n := newNode(t, dir, func(label string) error {
		if broken.Load() && label == "handover.weight" {
			return errors.New("broken by the test")
		}
		return nil
	})
	defer closeNode(t, n)
	n.KeepReady(testTariff, 1)
	waitReady(t, n)
	broken.Store(true)
	m, err := n.Start(t.Context(), eqvps.StartMachine{ID: "sb_a", Tariff: testTariff})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if got := run(t, m, "hostname"); got != "sb-a" {
		t.Errorf("got %q", got)
	}
	if fi, err := os.Lstat(filepath.Join(dir, "machines", "sb_a")); err != nil || !fi.IsDir() {
		t.Errorf("the machine was not restored on demand: %v, %v", fi, err)
	}
	if err := n.Destroy(t.Context(), "sb_a"); err != nil {
		t.Error(err)
	}
}

func waitReady(t *testing.T, n *node.Node) {
	t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for n.Ready() < 1 {
		if time.Now().After(deadline) {
			t.Fatal("no machine stands by after 3 minutes")
		}
		time.Sleep(20 * time.Millisecond)
	}
}
