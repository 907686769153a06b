package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cavaliergopher/cpio"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestInitramfs(t *testing.T) {
	f := newFakeHost(t)
	img, err := f.store(t.TempDir()).Build(t.Context(), f.recipe, BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	agent := []byte("\x7fELF agent")
	var one, two bytes.Buffer
	for _, w := range []io.Writer{&one, &two} {
		if err := img.WriteInitramfs(w, agent); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Error("two archives of the same image differ")
	}
	virtio := string(fakeELF("depends=\x00"))
	want := []string{
		"base 40755 ", "dev 40755 ", "modules 40755 ", "newroot 40755 ", "proc 40755 ", "sys 40755 ", "upper 40755 ",
		"init 100755 " + string(agent),
		"modules/00-virtio.ko 100644 " + virtio, "modules/01-net_failover.ko 100644 " + virtio,
		"modules/02-virtio_net.ko 100644 " + string(fakeELF("depends=net-failover\x00")),
	}
	var got []string
	for a := cpio.NewReader(&one); ; {
		h, err := a.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(a)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, h.Name+" "+strconv.FormatInt(int64(h.Mode), 8)+" "+string(data))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("archive (-want +got):\n%s", diff)
	}
	if err := os.Remove(filepath.Join(img.Dir, modulesDir, "00-virtio.ko")); err != nil {
		t.Fatal(err)
	}
	if err := img.WriteInitramfs(io.Discard, agent); !errors.Is(err, ErrDamaged) {
		t.Errorf("error %v, want ErrDamaged", err)
	}
}

func TestModuleOrder(t *testing.T) {
	info := map[string]string{
		"virtio_net": "depends=net_failover\x00", "net_failover": "depends=failover,built-in\x00", "failover": "depends=\x00",
		"fs": "license=GPL\x00softdep=pre: crypto-alias sum post: later\x00depends=\x00", "sum": "depends=\x00", "later": "depends=\x00",
		"loop_a": "depends=loop_b\x00", "loop_b": "depends=loop_a\x00", "lost": "depends=nowhere\x00",
	}
	for _, c := range []struct {
		ask  string
		want string
		err  string
	}{
		{ask: "virtio_net", want: "failover net_failover virtio_net"},
		{ask: "failover virtio_net net-failover", want: "failover net_failover virtio_net"},
		{ask: "fs", want: "sum fs"},
		{ask: "built_in", want: ""},
		{ask: "loop_a", err: "depends on itself"},
		{ask: "lost", err: "no module nowhere"},
	} {
		l := &moduleLoader{
			files: map[string]string{}, builtin: map[string]bool{"built_in": true},
			read: func(name string) ([]byte, error) { return fakeELF(info[name]), nil },
		}
		for name := range info {
			l.files[name] = name
		}
		var err error
		for _, name := range strings.Fields(c.ask) {
			if err = l.add(name); err != nil {
				break
			}
		}
		var got []string
		for _, m := range l.order {
			got = append(got, m.name)
		}
		switch {
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: error %v, want %q", c.ask, err, c.err)
		case c.err == "" && (err != nil || strings.Join(got, " ") != c.want):
			t.Errorf("%s: order %v, %v; want %s", c.ask, got, err, c.want)
		}
	}
}

// The stripped test program must still run.
func TestStripELF(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	small, err := stripELF(data)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "stripped")
	if err := os.WriteFile(path, small, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(path, "-test.run=^TestModuleOrder$", "-test.v").CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestModuleOrder") {
		t.Errorf("the stripped program does not run: %v\n%s", err, out)
	}
	again, err := stripELF(small)
	if err != nil || !bytes.Equal(again, small) {
		t.Errorf("stripping twice changes %d bytes to %d, %v", len(small), len(again), err)
	}
	for _, n := range []int{0, 3, 64, 1000, len(data) / 2} {
		if _, err := stripELF(data[:n]); err == nil {
			t.Errorf("a program cut to %d bytes was accepted", n)
		}
	}
}

// A sandbox's every command is a login shell, which must fork nothing: with no
// program on the PATH the profile has nothing to complain about.
func TestProfileForksNothing(t *testing.T) {
	cmd := exec.Command("/bin/bash", "--noprofile", "--norc", "-c", `. rootfs/etc/profile; . rootfs/root/.profile; . rootfs/root/.bashrc; echo "$PATH $LANG"`)
	cmd.Env = []string{"PATH=/nonexistent"}
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "/nonexistent C.UTF-8\n" {
		t.Errorf("%q, %v", out, err)
	}
	for _, file := range []string{"etc/profile", "root/.profile", "root/.bashrc"} {
		text, err := guestFiles.ReadFile("rootfs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, fork := range []string{"$(", "`", "|", "&\n"} {
			if strings.Contains(strings.ReplaceAll(string(text), "||", ""), fork) {
				t.Errorf("/%s contains %q, which forks", file, fork)
			}
		}
	}
}

func TestGuestEnvironment(t *testing.T) {
	text, err := guestFiles.ReadFile("rootfs/" + envFile)
	if err != nil {
		t.Fatal(err)
	}
	vars := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || key == "" {
			t.Errorf("the line %q is no KEY=VALUE", line)
		}
		vars[key] = value
	}
	if vars["HOME"] != "/root" || vars["LANG"] != "C.UTF-8" || !strings.Contains(vars["PATH"], "/usr/local/bin:") {
		t.Errorf("the environment is %v", vars)
	}
}

func TestCommandCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	mark := "1000." + strconv.Itoa(os.Getpid())
	script := "setsid sleep " + mark + " >/dev/null 2>&1 & trap '' TERM; echo started; wait; sleep 1000"
	var before int
	err := runCommand(ctx, command{args: []string{"sh", "-c", script}, activity: func(string) {
		before = waitForSleeps(t, mark, func(n int) bool { return n > 0 })
		cancel()
	}})
	if !errors.Is(err, context.Canceled) || before != 1 {
		t.Fatalf("error %v, %d grandchildren", err, before)
	}
	waitForSleeps(t, mark, func(n int) bool { return n == 0 })
}

// waitForSleeps waits until the number of running `sleep mark` is what it
// should be.
func waitForSleeps(t *testing.T, mark string, ok func(int) bool) int {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		n := 0
		lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range lines {
			if b, _ := os.ReadFile(file); string(b) == "sleep\x00"+mark+"\x00" {
				n++
			}
		}
		if ok(n) {
			return n
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d grandchildren run", n)
		}
	}
}

func TestCommandFailure(t *testing.T) {
	var lines []string
	err := runCommand(t.Context(), command{
		args:     []string{"sh", "-c", "echo one; printf 'two\\rthree'; echo; head -c 9999 /dev/zero | tr '\\0' x; echo; exit 3"},
		activity: func(l string) { lines = append(lines, l) },
	})
	want := []string{"one", "two", "three", strings.Repeat("x", maxLine)}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("activity (-want +got):\n%s", diff)
	}
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "one | two | three") {
		t.Errorf("error %v", err)
	}
	if err := runCommand(t.Context(), command{args: []string{"no-such-program"}}); err == nil || !strings.Contains(err.Error(), "install it") {
		t.Errorf("error %v, want one that says what to install", err)
	}
}

// What a killed builder left mounted must be unmounted, not emptied.
func TestStaleMounts(t *testing.T) {
	s := newFakeHost(t).store(t.TempDir())
	precious := t.TempDir()
	mustWrite(t, filepath.Join(precious, "file"), nil)
	point := filepath.Join(s.dir, tempPrefix+"1", "tree", "dev with space")
	if err := os.MkdirAll(point, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(precious, point, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(point, unix.MNT_DETACH) })
	unlock, err := s.lock(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if left := contents(t, s); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := os.Stat(filepath.Join(precious, "file")); err != nil {
		t.Errorf("a mounted file was deleted: %v", err)
	}
}

func TestHostileArchives(t *testing.T) {
	f := newFakeHost(t)
	for _, name := range []string{"../../etc/passwd", "/etc/passwd"} {
		p := NPMPackage{Package: "evil", Version: "1.0.0"}
		f.addNPM(p, map[string][]byte{name: []byte("x")})
		file := filepath.Join(t.TempDir(), "evil.tgz")
		mustWrite(t, file, f.npm["evil@1.0.0"])
		err := readNPM(file, func(string, fs.FileMode, []byte) error { return nil })
		if err == nil {
			t.Errorf("an archive with %q was accepted", name)
		}
	}
	dir := t.TempDir()
	mustWrite(t, filepath.Join(dir, "files.json"), mustJSON(embeddedFiles{Files: []embeddedFile{{Name: "../x"}}}))
	tree, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	if err := new(builder).unpackEmbedded(tree, dir, "usr", func(string) bool { return false }); err == nil {
		t.Error("a module file outside its folder was accepted")
	}
}

func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := beginStep(PrintProgress(&out), Event{Step: 2, Steps: 3, Name: "working"})
		time.Sleep(heartbeat + time.Second)
		synctest.Wait()
		s.detail("at 6 s")
		time.Sleep(2 * time.Second)
		s.detail("at 8 s")
		s.end(true)
		time.Sleep(time.Minute)
		want := "[2/3] working\n[2/3] working (5 s)\n[2/3] working (8 s) at 8 s\n[2/3] working: done in 8.0 s\n"
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("output (-want +got):\n%s", diff)
		}
	})
}
