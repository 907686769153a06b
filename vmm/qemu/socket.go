package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// The sockets of a machine, in its folder.
const (
	controlSocket = "qmp.sock"
	guestSocket   = "guest.sock"
)

// inFolder calls f with a path of name inside the folder that is short
// whatever the folder's own path: a socket's address holds 108 bytes at most.
// The path is good only while f runs.
func inFolder(dir, name string, f func(path string) error) error {
	folder, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer folder.Close()
	return f("/proc/self/fd/" + strconv.Itoa(int(folder.Fd())) + "/" + name)
}

// listen binds a socket in the folder, for a monitor to inherit.
func listen(dir, name string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make the socket %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	err = inFolder(dir, name, func(path string) error {
		return errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 1))
	})
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("listen on %s/%s: %w", dir, name, err)
	}
	return f, nil
}

// dial connects to a socket in the folder. The monitor serves one client at a
// time: a second one is connected and hears nothing, a third is refused with
// EAGAIN and tries again until the context ends.
func dial(ctx context.Context, dir, name string) (*net.UnixConn, error) {
	var conn net.Conn
	for {
		err := inFolder(dir, name, func(path string) (err error) {
			conn, err = new(net.Dialer).DialContext(ctx, "unix", path)
			return err
		})
		if err == nil {
			return conn.(*net.UnixConn), nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, fmt.Errorf("connect to %s/%s: %w", dir, name, err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to %s/%s: other clients are waiting: %w", dir, name, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
