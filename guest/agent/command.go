package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps/guest/internal/wire"
)

// Exit codes for commands that never ran, as a shell gives them.
const (
	exitTimeout  = 124
	exitCannot   = 126 // found, but it cannot be run; or its folder cannot be entered
	exitNotFound = 127
	exitSignal   = 128
)

// maxArg is how long a shell command may be to travel as an argument; Linux
// takes 128 KiB. Longer ones are read by the shell from a memory file.
const maxArg = 100 << 10

const shell = "/bin/bash"

// command is one command to run.
type command struct {
	line    string   // for bash -lc
	argv    []string // or: as it is
	cwd     string
	env     []string // complete
	stdin   []byte
	input   *os.File // or: from a file, which stays the caller's
	timeout time.Duration
}

// runner runs commands.
type runner struct {
	groups *cgroups
	null   int // /dev/null, for reading
}

// notRun is the outcome of a command that could not be started.
type notRun struct {
	code int
	text string
}

func (e *notRun) Error() string { return e.text }

// emitFunc passes on a frame of output, its header included. It must not keep
// it.
type emitFunc func(frame []byte) error

// run runs c in a group of its own to its end. Output goes to emit, from two
// goroutines at once, before run returns. ctx kills the command and all it has
// started. The caller releases the group when it has told the outcome: removing
// one takes the kernel longer than starting a command.
func (r *runner) run(ctx context.Context, g *cgroup, c command, emit emitFunc) (wire.Result, error) {
	p, err := r.spawn(c, g)
	if nr := (*notRun)(nil); errors.As(err, &nr) {
		return wire.Result{Code: nr.code}, emit(wire.Frame(wire.FrameStderr, []byte("eqvps: "+nr.text+"\n")))
	}
	if err != nil {
		return wire.Result{}, err
	}
	defer p.close()

	var timedOut atomic.Bool
	timer := time.AfterFunc(c.timeout, func() {
		timedOut.Store(true)
		_ = g.kill()
	})
	defer timer.Stop()
	stop := context.AfterFunc(ctx, func() { _ = g.kill() })
	defer stop()

	var wg sync.WaitGroup
	var failed [2]error
	for i, out := range []struct {
		kind byte
		f    *os.File
	}{{wire.FrameStdout, p.stdout}, {wire.FrameStderr, p.stderr}} {
		wg.Go(func() {
			failed[i] = pump(out.f, out.kind, emit)
			if failed[i] != nil {
				_ = g.kill() // nobody listens
			}
		})
	}
	end := <-p.done
	timer.Stop()
	// Whatever was written before the command ended is in the pipes by now.
	// Processes it has left behind may hold them open: do not wait for those.
	past := time.Unix(1, 0)
	_ = p.stdout.SetReadDeadline(past)
	_ = p.stderr.SetReadDeadline(past)
	if p.stdin != nil {
		_ = p.stdin.Close()
	}
	wg.Wait()

	res := wire.Result{DurationNS: int64(end.at.Sub(p.begun))}
	switch ws := end.status; {
	case ws.Signaled() && ws.Signal() == unix.SIGKILL && timedOut.Load():
		res.Code, res.TimedOut = exitTimeout, true
	case ws.Signaled():
		res.Code, res.Signal = exitSignal+int(ws.Signal()), unix.SignalName(ws.Signal())
		res.OOM = ws.Signal() == unix.SIGKILL && g.oomKilled()
	default:
		res.Code = ws.ExitStatus()
		res.OOM = res.Code == exitSignal+int(unix.SIGKILL) && g.oomKilled()
	}
	if err := errors.Join(failed[:]...); err != nil {
		return res, err
	}
	return res, ctx.Err()
}

// process is a command that runs.
type process struct {
	done           <-chan exit
	begun          time.Time
	stdout, stderr *os.File
	stdin          *os.File // nil unless it is still being fed
}

func (p *process) close() {
	_ = p.stdout.Close()
	_ = p.stderr.Close()
}

func (r *runner) spawn(c command, g *cgroup) (_ *process, err error) {
	if st, err := os.Stat(c.cwd); err != nil || !st.IsDir() {
		if err == nil {
			err = unix.ENOTDIR
		}
		return nil, &notRun{exitCannot, fmt.Sprintf("cd: %s: %s", c.cwd, reason(err))}
	}
	var files []int // ours to close once the command has them
	defer func() {
		for _, fd := range files {
			_ = unix.Close(fd)
		}
	}()
	argv0, argv := shell, []string{"bash", "-lc", c.line}
	fds := make([]uintptr, 3, 4)
	switch {
	case len(c.argv) > 0:
		argv = c.argv
		if argv0, err = findProgram(c.argv[0], c.cwd, lookup(c.env, "PATH")); err != nil {
			return nil, err
		}
	case len(c.line) > maxArg:
		// The shell reads the whole file before it runs the first line, which
		// closes the descriptor.
		fd, err := memfile("command", "exec 3<&-;"+c.line)
		if err != nil {
			return nil, err
		}
		files = append(files, fd)
		fds = append(fds, uintptr(fd))
		argv[2] = ". /proc/self/fd/3"
	}

	p := &process{}
	var in, outs, errs [2]int
	in[0] = r.null
	switch {
	case c.input != nil:
		in[0] = int(c.input.Fd())
	case len(c.stdin) > 0:
		if err := unix.Pipe2(in[:], unix.O_CLOEXEC); err != nil {
			return nil, err
		}
		files = append(files, in[0])
		p.stdin = pipeEnd(in[1])
	}
	if err := unix.Pipe2(outs[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	p.stdout, files = outputEnd(outs[0]), append(files, outs[1])
	if err := unix.Pipe2(errs[:], unix.O_CLOEXEC); err != nil {
		_ = p.stdout.Close()
		return nil, err
	}
	p.stderr, files = outputEnd(errs[0]), append(files, errs[1])
	fds[0], fds[1], fds[2] = uintptr(in[0]), uintptr(outs[1]), uintptr(errs[1])

	attr := &syscall.ProcAttr{
		Dir: c.cwd, Env: c.env, Files: fds,
		Sys: &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: g.fd},
	}
	p.begun = time.Now()
	p.done, err = children.start(argv0, argv, attr)
	if err != nil {
		p.close()
		if p.stdin != nil {
			_ = p.stdin.Close()
		}
		return nil, startError(argv[0], err)
	}
	if p.stdin != nil {
		p.feed(c.stdin)
	}
	return p, nil
}

// feed gives the command its input. What fits into the pipe costs no
// goroutine; a command that does not read the rest does not matter.
func (p *process) feed(data []byte) {
	rc, err := p.stdin.SyscallConn()
	if err == nil {
		_ = rc.Write(func(fd uintptr) bool {
			n, _ := unix.Write(int(fd), data)
			data = data[max(n, 0):]
			return true
		})
	}
	if len(data) == 0 {
		_ = p.stdin.Close()
		p.stdin = nil
		return
	}
	go func(f *os.File) {
		_, _ = f.Write(data)
		_ = f.Close()
	}(p.stdin)
}

func pipeEnd(fd int) *os.File {
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), "pipe")
}

// outputEnd is where a command's output is read.
func outputEnd(fd int) *os.File {
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, outputPipe) // else it is smaller
	return pipeEnd(fd)
}

func memfile(name, content string) (int, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	for rest := content; len(rest) > 0; {
		n, err := unix.Write(fd, []byte(rest[:min(len(rest), 64<<10)]))
		if err != nil {
			_ = unix.Close(fd)
			return -1, err
		}
		rest = rest[n:]
	}
	return fd, nil
}

// outputPipe is the size of the pipes that a command prints into: the larger
// they are, the rarer the processor goes back and forth between it and us.
const outputPipe = 256 << 10

// buffers holds frames of output. One is taken when there is something to read
// and given back when it is sent: a command that prints nothing holds none.
var buffers = sync.Pool{New: func() any { return new(buffer) }}

type buffer [wire.FrameHeader + wire.MaxFrame]byte

// A command that prints in small pieces would be read in small pieces, at the
// price of several process switches each. So less than gatherBelow that follows
// other output within gatherAfter waits for gatherFor, that more may come; what
// follows silence goes out at once.
const (
	gatherBelow = 64 << 10
	gatherAfter = 3 * time.Millisecond
	gatherFor   = time.Millisecond
)

// pump copies a pipe to emit until its end, or until it has a deadline: then
// what lies in the pipe at that moment is the rest.
func pump(f *os.File, kind byte, emit emitFunc) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	var last time.Time
	for {
		buf, n, err := readSome(rc)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return drain(f, rc, kind, emit)
		}
		if err != nil || n <= 0 {
			return nil
		}
		if n < gatherBelow && time.Since(last) < gatherAfter {
			time.Sleep(gatherFor)
			n += readMore(rc, buf[wire.FrameHeader+n:])
		}
		err = buf.send(kind, n, emit)
		buffers.Put(buf)
		if err != nil {
			return err
		}
		last = time.Now()
	}
}

// send passes on the n bytes behind the header.
func (b *buffer) send(kind byte, n int, emit emitFunc) error {
	wire.PutFrameHeader(b[:], kind, n)
	return emit(b[:wire.FrameHeader+n])
}

// readSome waits until there is something to read and takes it; n is 0 at the
// end.
func readSome(rc syscall.RawConn) (buf *buffer, n int, err error) {
	err = rc.Read(func(fd uintptr) bool {
		buf = buffers.Get().(*buffer)
		var rerr error
		for {
			if n, rerr = unix.Read(int(fd), buf[wire.FrameHeader:]); rerr != unix.EINTR {
				break
			}
		}
		if n <= 0 {
			buffers.Put(buf)
			buf = nil
		}
		return rerr != unix.EAGAIN
	})
	return buf, n, err
}

// readMore reads what is there, and nothing else.
func readMore(rc syscall.RawConn, p []byte) (n int) {
	_ = rc.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), p) })
	return max(n, 0)
}

func drain(f *os.File, rc syscall.RawConn, kind byte, emit emitFunc) error {
	_ = f.SetReadDeadline(time.Time{})
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	var out error
	_ = rc.Read(func(fd uintptr) bool {
		rest, _ := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		for rest > 0 && out == nil {
			n, err := unix.Read(int(fd), buf[wire.FrameHeader:][:min(rest, wire.MaxFrame)])
			if err != nil || n <= 0 {
				return true
			}
			rest -= n
			out = buf.send(kind, n, emit)
		}
		return true
	})
	return out
}

// findProgram is what a shell does with the first word.
func findProgram(name, cwd, path string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	var denied bool
	for _, dir := range strings.Split(path, ":") {
		if dir == "" {
			dir = "."
		}
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(cwd, dir)
		}
		file := dir + "/" + name
		st, err := os.Stat(file)
		if err != nil || st.IsDir() {
			continue
		}
		if st.Mode()&0o111 != 0 {
			return file, nil
		}
		denied = true
	}
	if denied {
		return "", &notRun{exitCannot, name + ": Permission denied"}
	}
	return "", &notRun{exitNotFound, name + ": command not found"}
}

// startError tells a command that cannot be run from a sandbox that is broken.
func startError(name string, err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err
	}
	code := exitCannot
	if errno == unix.ENOENT {
		code = exitNotFound
	}
	return &notRun{code, name + ": " + reason(errno)}
}

// reason is the text of an error, as a shell prints it.
func reason(err error) string {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err.Error()
	}
	s := errno.Error()
	return strings.ToUpper(s[:1]) + s[1:]
}
