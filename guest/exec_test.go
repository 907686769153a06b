package guest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
)

func TestExec(t *testing.T) {
	m := newMachine(t)
	c := m.renew(t, map[string]string{"SECRET": "s3", "BOTH": "sandbox"})
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	script := filepath.Join(dir, "script")
	for file, mode := range map[string]os.FileMode{plain: 0o644, script: 0o755} {
		if err := os.WriteFile(file, []byte("#!/nowhere/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	code := func(n int) eqvps.ExitStatus { return eqvps.ExitStatus{Code: n} }
	for name, test := range map[string]struct {
		req  eqvps.ExecRequest
		want result
	}{
		"output":         {eqvps.ExecRequest{Command: "echo out; echo err >&2"}, result{"out\n", "err\n", code(0)}},
		"exit code":      {eqvps.ExecRequest{Command: "exit 7"}, result{"", "", code(7)}},
		"signal":         {eqvps.ExecRequest{Command: "kill -TERM $$"}, result{"", "", eqvps.ExitStatus{Code: 143, Signal: "SIGTERM"}}},
		"killed":         {eqvps.ExecRequest{Command: "kill -9 $$"}, result{"", "", eqvps.ExitStatus{Code: 137, Signal: "SIGKILL"}}},
		"argv":           {eqvps.ExecRequest{Argv: []string{"printf", "%s.", "a b", "$X"}}, result{"a b.$X.", "", code(0)}},
		"stdin":          {eqvps.ExecRequest{Command: "cat", Stdin: []byte("in\x00put")}, result{"in\x00put", "", code(0)}},
		"no stdin":       {eqvps.ExecRequest{Command: "cat"}, result{"", "", code(0)}},
		"unread stdin":   {eqvps.ExecRequest{Command: "true", Stdin: make([]byte, 4<<20)}, result{"", "", code(0)}},
		"cwd":            {eqvps.ExecRequest{Command: "pwd", Cwd: "/usr"}, result{"/usr\n", "", code(0)}},
		"default cwd":    {eqvps.ExecRequest{Argv: []string{"pwd"}}, result{"/root\n", "", code(0)}},
		"bad cwd":        {eqvps.ExecRequest{Command: "pwd", Cwd: "/nowhere"}, result{"", "eqvps: cd: /nowhere: No such file or directory\n", code(126)}},
		"cwd is a file":  {eqvps.ExecRequest{Command: "pwd", Cwd: "/etc/passwd"}, result{"", "eqvps: cd: /etc/passwd: Not a directory\n", code(126)}},
		"not found":      {eqvps.ExecRequest{Argv: []string{"no-such-program"}}, result{"", "eqvps: no-such-program: command not found\n", code(127)}},
		"no such path":   {eqvps.ExecRequest{Argv: []string{"/no/such"}}, result{"", "eqvps: /no/such: No such file or directory\n", code(127)}},
		"not executable": {eqvps.ExecRequest{Argv: []string{plain}}, result{"", "eqvps: " + plain + ": Permission denied\n", code(126)}},
		"no interpreter": {eqvps.ExecRequest{Argv: []string{script}}, result{"", "eqvps: " + script + ": No such file or directory\n", code(127)}},
		"env": {eqvps.ExecRequest{Command: `echo $IMAGE $SECRET $BOTH $CALL`, Env: map[string]string{"CALL": "c", "BOTH": "call"}},
			result{"debian s3 call c\n", "", code(0)}},
		"path of the call": {eqvps.ExecRequest{Argv: []string{"true"}, Env: map[string]string{"PATH": dir}}, result{"", "eqvps: true: command not found\n", code(127)}},
		"session":          {eqvps.ExecRequest{Command: `[ $(ps -o sid= -p $$) = $$ ] && echo leader`}, result{"leader\n", "", code(0)}},
		"descriptors":      {eqvps.ExecRequest{Argv: []string{"ls", "/proc/self/fd"}}, result{"0\n1\n2\n3\n", "", code(0)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, run(t, c, test.req)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A command too long for one argument behaves like any other.
func TestLongCommand(t *testing.T) {
	c := newMachine(t).connect(t)
	line := "echo $0; " + strings.Repeat("# filler\n", eqvps.MaxCommandBytes/9-20) + "ls /proc/self/fd | wc -l; exit 9"
	want := result{"bash\n4\n", "", eqvps.ExitStatus{Code: 9}}
	if diff := cmp.Diff(want, sh(t, c, line)); diff != "" {
		t.Error(diff)
	}
}

func TestTimeoutKillsTheTree(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.connect(t)
	res := run(t, c, eqvps.ExecRequest{Command: "setsid sleep 1000 & echo $!; sleep 1000", Timeout: 3 * time.Second})
	if want := (eqvps.ExitStatus{Code: 124, TimedOut: true}); res.ExitStatus != want {
		t.Errorf("the status is %+v, want %+v", res.ExitStatus, want)
	}
	if res.Out == "" {
		t.Error("what was printed before the timeout is lost")
	}
	wait(t, "the detached child is dead", func() bool { return !alive(res.Out) })
}

func TestCancelKillsTheTree(t *testing.T) {
	for name, end := range map[string]func(cancel func()) error{
		"context":  func(cancel func()) error { cancel(); return nil },
		"receiver": func(func()) error { return errStop },
	} {
		t.Run(name, func(t *testing.T) {
			c := newMachine(t).connect(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var pid string
			_, err := c.Exec(ctx, eqvps.ExecRequest{Command: "setsid sleep 1000 & echo $!; wait"}, func(_ eqvps.Stream, p []byte) error {
				pid = string(p)
				return end(cancel)
			})
			if !errors.Is(err, context.Canceled) && err != errStop {
				t.Errorf("the error is %v", err)
			}
			wait(t, "the child is dead", func() bool { return !alive(pid) })
		})
	}
}

// Closing the session is the end of its commands too.
func TestCloseKills(t *testing.T) {
	c := newMachine(t).connect(t)
	var pid string
	_, err := c.Exec(t.Context(), eqvps.ExecRequest{Command: "sleep 1000 & echo $!; wait"}, func(_ eqvps.Stream, p []byte) error {
		pid = string(p)
		go c.Close()
		return nil
	})
	if eqvps.ErrorCode(err) != eqvps.CodeUnreachable {
		t.Errorf("the error is %v, want %s", err, eqvps.CodeUnreachable)
	}
	<-c.Done()
	wait(t, "the child is dead", func() bool { return !alive(pid) })
}

// A process left behind holds the pipes, but not the answer. Nothing that was
// printed before the shell's end is lost, and the process lives on.
func TestLeftBehind(t *testing.T) {
	m := newMachine(t)
	c := m.connect(t)
	res := sh(t, c, "(sleep 1000; echo late) & echo $!; head -c 50000 /dev/zero; exit 5")
	pid, zeros, _ := strings.Cut(res.Out, "\n")
	if res.Code != 5 || len(zeros) != 50000 {
		t.Errorf("exit code %d and %d bytes; want 5 and 50000", res.Code, len(zeros))
	}
	if !alive(pid) {
		t.Error("the process left behind is dead")
	}
	// Its cgroup goes once it is gone and another command ends.
	sh(t, c, "kill "+pid+" $(ps -o pid= --ppid "+pid+")")
	wait(t, "the cgroup is removed", func() bool {
		sh(t, c, "true")
		return len(m.groups()) <= 2 // the spare, and perhaps one on its way out
	})
}

// 300 commands, each of which orphans others: no exit status is lost or mixed
// up, and no zombie stays.
func TestReaping(t *testing.T) {
	c := newMachine(t).connect(t)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i := range 300 {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			want := i % 100
			res, err := try(c, t.Context(), eqvps.ExecRequest{Argv: []string{"sh", "-c", fmt.Sprintf("(sh -c 'exit 77' & exit 78) & (:) & exit %d", want)}})
			if err != nil || res.Code != want {
				t.Errorf("command %d ends with %d (%v), want %d", i, res.Code, err, want)
			}
		})
	}
	wg.Wait()
	wait(t, "no child is left", func() bool { return len(children(t)) == 0 })
}

func children(t *testing.T) (pids []string) {
	threads, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range threads {
		b, _ := os.ReadFile(f)
		pids = append(pids, strings.Fields(string(b))...)
	}
	return pids
}

// 200 commands at once, one of whose readers takes nothing: the others must
// not notice.
func TestSlowReaderBlocksNobody(t *testing.T) {
	c := newMachine(t).connect(t)
	stuck, free := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		var once sync.Once
		n := 0
		st, err := c.Exec(t.Context(), eqvps.ExecRequest{Command: "head -c 3000000 /dev/zero"}, func(_ eqvps.Stream, p []byte) error {
			once.Do(func() { close(stuck); <-free })
			n += len(p)
			return nil
		})
		if err != nil || st.Code != 0 || n != 3000000 {
			t.Errorf("the slow one: %+v, %v, %d bytes", st, err, n)
		}
	})
	<-stuck
	var others sync.WaitGroup
	for i := range 200 {
		others.Go(func() {
			want := fmt.Sprint(i)
			if res, err := try(c, t.Context(), eqvps.ExecRequest{Argv: []string{"echo", "-n", want}}); err != nil || res.Out != want {
				t.Errorf("command %d: %q, %v", i, res.Out, err)
			}
		})
	}
	others.Wait()
	if _, err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	close(free)
	wg.Wait()
}

// Much output in small pieces comes whole and in order.
func TestMuchOutput(t *testing.T) {
	c := newMachine(t).connect(t)
	res := sh(t, c, "seq 1 200000")
	lines := strings.Fields(res.Out)
	if len(lines) != 200000 || lines[0] != "1" || lines[199999] != "200000" || len(res.Out) != 1288895 {
		t.Errorf("%d lines, %d bytes", len(lines), len(res.Out))
	}
}
