package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps/guest/agent"
)

// portName is the name of the virtio-serial port to the host.
const portName = "org.eqvps.guest.0"

// port is the byte channel to the host.
//
// A read of a port whose host side is closed returns at once, so neither a
// blocking read nor a level-triggered poll can wait for the host. The kernel
// does wake the port's waiters when the host comes or goes, and the Go
// runtime's poller is edge-triggered: it sleeps until then.
type port struct {
	f    *os.File
	raw  syscall.RawConn
	gone bool // the last read found nobody at the other end
}

// openPort opens the port by its name: its device is /dev/vportNpM, and N is
// not always 0.
func openPort() (*port, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, err
	}
	for _, file := range names {
		b, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(b)) != portName {
			continue
		}
		dev := "/dev/" + filepath.Base(filepath.Dir(file))
		fd, err := unix.Open(dev, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", dev, err)
		}
		return newPort(fd)
	}
	return nil, errors.New("the machine has no port " + portName)
}

func newPort(fd int) (*port, error) {
	p := &port{f: os.NewFile(uintptr(fd), portName)}
	if p.f == nil {
		return nil, errors.New("bad descriptor of the port")
	}
	var err error
	p.raw, err = p.f.SyscallConn()
	return p, err
}

// portBuffer is what one read of a port returns at most.
const portBuffer = 4096

// Read returns agent.ErrHostGone once when there is no host, then waits.
func (p *port) Read(b []byte) (n int, err error) {
	werr := p.raw.Read(func(fd uintptr) bool {
		n, err = p.read(int(fd), b)
		switch {
		case err == unix.EAGAIN:
			p.gone = false
			return false
		case err == nil && n == 0 && p.gone:
			return false
		case err == nil && n == 0:
			p.gone = true
			err = agent.ErrHostGone
		default:
			p.gone = false
		}
		return true
	})
	if werr != nil {
		return 0, werr
	}
	return n, err
}

// read reads as much as there is: while the port fills its buffers, the reader
// behind it is woken once for many.
func (p *port) read(fd int, b []byte) (n int, err error) {
	for n < len(b) {
		var m int
		m, err = unix.Read(fd, b[n:])
		if err == unix.EINTR {
			continue
		}
		if m > 0 {
			n += m
		}
		if m != portBuffer {
			break
		}
	}
	if n > 0 {
		return n, nil
	}
	return 0, err
}

func (p *port) Write(b []byte) (int, error) { return p.f.Write(b) }
