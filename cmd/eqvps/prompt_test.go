package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// pseudoTerminal returns both ends of a new terminal.
func pseudoTerminal(t *testing.T) (keyboard, tty *os.File) {
	t.Helper()
	keyboard, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keyboard.Close() })
	raw, err := keyboard.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if cerr := raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	if tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return keyboard, tty
}

func echoes(t *testing.T, tty *os.File) bool {
	t.Helper()
	state, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return state.Lflag&unix.ECHO != 0
}

// onPrompt is standard error; it tells when something is asked for.
type onPrompt struct {
	bytes.Buffer
	asked chan struct{}
}

func (w *onPrompt) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("not shown")) {
		close(w.asked)
	}
	return w.Buffer.Write(p)
}

// TestValueIsNotShown: what is typed at the prompt appears on no screen, and the
// terminal is as before, also after Ctrl-C.
func TestValueIsNotShown(t *testing.T) {
	keyboard, tty := pseudoTerminal(t)
	f := newAPI(t)
	var out bytes.Buffer
	errout := &onPrompt{asked: make(chan struct{})}
	a := &app{stdin: tty, stdout: &out, stderr: errout, now: time.Now}
	typed := make(chan error, 1)
	go func() {
		<-errout.asked
		_, err := io.WriteString(keyboard, "top secret\n")
		typed <- err
	}()
	if code := a.run(context.Background(), []string{"secret", "set", "API_KEY"}); code != 0 {
		t.Fatalf("exit code %d: %s", code, errout.String())
	}
	if err := <-typed; err != nil {
		t.Fatal(err)
	}
	if want := `PUT /secrets/API_KEY {"value":"top secret"}`; len(f.asked) != 1 || f.asked[0] != want {
		t.Errorf("asked %q, want %s", f.asked, want)
	}
	if !echoes(t, tty) {
		t.Error("the terminal stays mute")
	}
	// What the terminal shows comes before this line.
	if _, err := io.WriteString(tty, "end\n"); err != nil {
		t.Fatal(err)
	}
	var screen strings.Builder
	for buf := make([]byte, 100); !strings.Contains(screen.String(), "end"); {
		n, err := keyboard.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		screen.Write(buf[:n])
	}
	if strings.Contains(screen.String()+errout.String()+out.String(), "secret\n") || strings.Contains(screen.String(), "top") {
		t.Errorf("the screen shows %q, standard error %q", screen.String(), errout.String())
	}

	ctx, cancel := context.WithCancelCause(context.Background())
	errout = &onPrompt{asked: make(chan struct{})}
	a.stderr = errout
	go func() {
		<-errout.asked
		cancel(signalled{2})
	}()
	if code := a.run(ctx, []string{"secret", "set", "API_KEY"}); code != 130 || !errors.As(context.Cause(ctx), new(signalled)) {
		t.Errorf("after Ctrl-C the exit code is %d: %s", code, errout.String())
	}
	if !echoes(t, tty) {
		t.Error("after Ctrl-C the terminal stays mute")
	}
}
