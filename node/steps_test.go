package node_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/node"
)

// breaker records the labelled steps and breaks one of them.
type breaker struct {
	mu    sync.Mutex
	seen  []string
	label string // to break; "" none
	crash bool   // end the goroutine in front of the step, as if the process had died
}

var errBroken = errors.New("broken by the test")

func (b *breaker) step(label string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(b.seen, label) {
		b.seen = append(b.seen, label)
	}
	if label != b.label {
		return nil
	}
	b.label = "" // once
	if b.crash {
		b.mu.Unlock()
		defer b.mu.Lock()
		runtime.Goexit()
	}
	return errBroken
}

// breakStep arms the breaker for what do does. A crash is told by errCrashed.
func (b *breaker) breakStep(label string, crash bool, do func() error) error {
	b.mu.Lock()
	b.label, b.crash = label, crash
	b.mu.Unlock()
	result := make(chan error, 1)
	go func() {
		err := errCrashed
		defer func() { result <- err }()
		err = do()
	}()
	err := <-result
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.label != "" {
		err = errors.Join(err, errors.New("the step "+label+" was not taken"))
	}
	b.label = ""
	return err
}

var errCrashed = errors.New("crashed")

// take returns and forgets the steps seen so far whose labels begin so.
func (b *breaker) take(prefixes ...string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := b.seen
	b.seen = nil
	return slices.DeleteFunc(seen, func(label string) bool {
		return !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(label, p) })
	})
}

// TestBrokenSteps breaks each step of a pause, a resume and a reboot in turn, by
// an error and by the end of the process. Afterwards the machine runs and
// answers, or is paused and can be resumed once, or can be rebooted; there never
// are two of it; and Destroy leaves nothing.
func TestBrokenSteps(t *testing.T) {
	dir := dataDir(t)
	b := &breaker{}
	var old []*node.Node // whose process has died
	n := newNode(t, dir, b.step)
	const id = "sb_a"
	m := startPersistent(t, n, id)
	var mark string
	alive := func(m eqvps.Machine) bool {
		return run(t, m, "cat /proc/sys/kernel/random/boot_id; pgrep -x sleep | wc -l") == mark+"\n1"
	}
	renew := func() {
		mark = run(t, m, "pkill -x sleep; sleep 10000 >/dev/null 2>&1 & cat /proc/sys/kernel/random/boot_id")
		for !alive(m) { // it is on its way
			time.Sleep(10 * time.Millisecond)
		}
	}
	single := func(when string) {
		t.Helper()
		if pids := monitors(dir); len(pids) > 1 {
			t.Fatalf("%s: %d monitors run: %v", when, len(pids), pids)
		}
	}

	b.take()
	pause(t, n, id)
	pauseSteps := b.take("pause.")
	m = resume(t, n, id)
	resumeSteps := b.take("resume.", "place.")
	m = reboot(t, n, id)
	rebootSteps := b.take("reboot.", "place.")
	t.Log("steps:", pauseSteps, resumeSteps, rebootSteps)
	if len(pauseSteps) < 9 || len(resumeSteps) < 9 || len(rebootSteps) < 9 {
		t.Fatal("some steps have no label")
	}
	renew()
	crashed := func() {
		n.HangUp()
		old = append(old, n)
		n = newNode(t, dir, b.step)
	}

	for _, crash := range []bool{false, true} {
		for _, label := range pauseSteps {
			when := map[bool]string{false: "error in ", true: "crash before "}[crash] + label
			err := b.breakStep(label, crash, func() error { return n.Pause(context.Background(), id, testKey) })
			single(when)
			t.Log(when, "gives", err, "paused:", n.Paused(id))
			if crash {
				crashed()
				single(when)
				m = resume(t, n, id)
			} else if n.Paused(id) {
				if err != nil {
					t.Errorf("%s: paused, but the error is %v", when, err)
				}
				m = resume(t, n, id)
			} else if err == nil {
				t.Errorf("%s: neither paused nor an error", when)
			}
			single(when)
			if !alive(m) {
				t.Errorf("%s: the machine has lost what it had", when)
				renew()
			}
		}
		for _, label := range resumeSteps {
			when := map[bool]string{false: "error in ", true: "crash before "}[crash] + label
			if !n.Paused(id) {
				pause(t, n, id)
			}
			var got eqvps.Machine
			err := b.breakStep(label, crash, func() (err error) {
				got, err = n.Resume(context.Background(), persistent(id))
				return err
			})
			single(when)
			t.Log(when, "gives", err, "paused:", n.Paused(id))
			if crash {
				crashed()
			}
			switch {
			case err == nil:
				m = got
				t.Cleanup(func() { got.Close() })
			case n.Paused(id):
				if pids := monitors(dir); len(pids) > 0 {
					t.Errorf("%s: it is paused, and monitors run: %v", when, pids)
				}
				continue // with the next step: what was tried in vain has used nothing
			case crash:
				m = resume(t, n, id) // taken back
			default:
				t.Errorf("%s: it is not paused any more", when)
				m = reboot(t, n, id)
			}
			single(when)
			if n.Paused(id) {
				t.Errorf("%s: it runs and is paused", when)
			}
			if !alive(m) {
				t.Errorf("%s: the machine has lost what it had", when)
				renew()
			}
		}
	}
	if n.Paused(id) {
		m = resume(t, n, id)
		if !alive(m) {
			t.Error("the machine has lost what it had")
		}
	}

	// A crash of process and host right before the guest goes on, or right after:
	// nobody can tell, so the memory is not used again.
	pause(t, n, id)
	_ = b.breakStep("resume.renew", true, func() error {
		_, err := n.Resume(context.Background(), persistent(id))
		return err
	})
	crashed()
	for _, pid := range monitors(dir) {
		if n, err := strconv.Atoi(pid); err != nil || unix.Kill(n, unix.SIGKILL) != nil {
			t.Fatal(pid, err)
		}
	}
	if _, err := n.Resume(t.Context(), persistent(id)); err == nil || n.Paused(id) {
		t.Errorf("memory that may have been used: %v, paused: %v", err, n.Paused(id))
	}

	for _, crash := range []bool{false, true} {
		for _, label := range rebootSteps {
			when := map[bool]string{false: "error in ", true: "crash before "}[crash] + label
			var got eqvps.Machine
			err := b.breakStep(label, crash, func() (err error) {
				got, err = n.Reboot(context.Background(), persistent(id))
				return err
			})
			single(when)
			t.Log(when, "gives", err)
			if crash {
				crashed()
			} else if err == nil {
				got.Close()
			}
			if n.Paused(id) {
				t.Errorf("%s: it is paused", when)
			}
		}
	}
	m = reboot(t, n, id)
	run(t, m, "true")
	b.take()
	pause(t, n, id)
	destroyed(t, n, dir, id)
	for _, n := range old {
		closeNode(t, n)
	}
	closeNode(t, n)
}
