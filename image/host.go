package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// minFree is the free space a build asks for, in bytes: the tree, the image
// and the inputs exist at the same time.
const minFree = 3 << 30

// host is what a build asks of the machine it runs on. Tests replace it to
// break one step.
type host struct {
	run      func(ctx context.Context, c command) error
	lookPath func(name string) (string, error)
	euid     func() int
	free     func(dir string) (uint64, error) // bytes
	step     func(name string) error          // called as each step of a build begins
	caBundle string                           // the host's trusted certificates, PEM
	caDistro string                           // the folder of those its distribution ships
}

// command is one program that a build runs.
type command struct {
	args     []string
	dir      string
	proc     string       // where the program finds /proc; empty: at /proc
	env      []string     // added to this process's environment
	stdout   io.Writer    // nil: standard output counts as activity
	activity func(string) // receives lines of output
}

func realHost() host {
	return host{
		run:      runCommand,
		lookPath: lookPath,
		euid:     os.Geteuid,
		free:     freeSpace,
		step:     func(string) error { return nil },
		caBundle: "/etc/ssl/certs/ca-certificates.crt",
		caDistro: "/usr/share/ca-certificates",
	}
}

// tools lists what a build runs, with the Debian package that brings it.
var tools = []struct{ name, pkg string }{
	{"mmdebstrap", "mmdebstrap"},
	{"go", "golang-go"},
	{"npm", "npm"},
	{"mke2fs", "e2fsprogs"},
	{"resize2fs", "e2fsprogs"},
	{"dpkg-deb", "dpkg"},
	{"xz", "xz-utils"},
	{"unshare", "util-linux"},
}

// check tells why a build in dir cannot succeed on this host.
func (h host) check(dir string) error {
	if h.euid() != 0 {
		return errors.New("building an image needs root; run it again with sudo")
	}
	for _, t := range tools {
		if _, err := h.lookPath(t.name); err != nil {
			return fmt.Errorf("building an image needs %s; install it, on Debian with `apt-get install %s`", t.name, t.pkg)
		}
	}
	free, err := h.free(dir)
	if err != nil {
		return fmt.Errorf("the free space of %s cannot be read: %w", dir, err)
	}
	if free < minFree {
		return fmt.Errorf("building an image needs %.1f GB free in %s and there are %.1f; make room or choose another folder",
			minFree/1e9, dir, float64(free)/1e9)
	}
	return nil
}

// morePath holds programs that a service's PATH often lacks.
const morePath = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/local/go/bin"

func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for dir := range strings.SplitSeq(morePath, ":") {
		if path, err := exec.LookPath(dir + "/" + name); err == nil {
			return path, nil
		}
	}
	return "", err
}

func freeSpace(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// commandError is a program's failure with the end of what it printed.
type commandError struct {
	program string
	cause   error
	tail    []string // the last lines
}

func (e *commandError) Error() string {
	said := "it printed nothing"
	if len(e.tail) > 0 {
		said = "it printed: " + strings.Join(e.tail, " | ")
	}
	return fmt.Sprintf("%s failed (%v); %s", e.program, e.cause, said)
}

func (e *commandError) Unwrap() error { return e.cause }

// runCommand runs a program to its end, in process and mount namespaces of its
// own: when ctx ends, or this process is killed, everything that the program
// started or mounted is gone at once, and nothing goes on writing into a folder
// that is about to be removed.
func runCommand(ctx context.Context, c command) error {
	path, err := lookPath(c.args[0])
	if err != nil {
		return fmt.Errorf("%s is missing on this host; install it", c.args[0])
	}
	proc := c.proc
	if proc == "" {
		proc = "/proc"
	}
	out := &lineWriter{activity: c.activity}
	cmd := exec.CommandContext(ctx, "unshare", append([]string{
		"--pid", "--fork", "--kill-child", "--mount-proc=" + proc, path}, c.args[1:]...)...)
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":"+morePath, "LC_ALL=C.UTF-8")
	cmd.Env = append(cmd.Env, c.env...)
	cmd.Stdout, cmd.Stderr = out, out
	if c.stdout != nil {
		cmd.Stdout = c.stdout
	}
	// A group of its own: an interrupt from the terminal reaches this process
	// alone, which then ends ctx.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 10 * time.Second

	// The death signal comes with the end of the thread that forked.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s cannot be started: %w", c.args[0], err)
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return &commandError{program: c.args[0], cause: err, tail: out.tail}
	}
	return nil
}

// lineWriter passes lines on and keeps the last few of bounded length.
type lineWriter struct {
	activity func(string)
	partial  []byte
	tail     []string
}

const (
	maxLine  = 300 // bytes
	maxLines = 4
)

func (w *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		i := bytes.IndexAny(p, "\r\n")
		chunk := p
		if i >= 0 {
			chunk = p[:i]
		}
		w.partial = append(w.partial, chunk[:min(len(chunk), maxLine-len(w.partial))]...)
		if i < 0 {
			break
		}
		p = p[i+1:]
		line := strings.TrimSpace(strings.ToValidUTF8(string(w.partial), "?"))
		w.partial = w.partial[:0]
		if line == "" {
			continue
		}
		w.tail = append(w.tail, line)
		w.tail = w.tail[max(0, len(w.tail)-maxLines):]
		if w.activity != nil {
			w.activity(line)
		}
	}
	return n, nil
}
