package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// threadNamespace is the network namespace of the calling thread.
const threadNamespace = "/proc/thread-self/ns/net"

func namespacePath(index int) string {
	return filepath.Join(namespaceDir, namespacePrefix+strconv.Itoa(index))
}

// inNamespace runs f on a thread that enter has moved to another network
// namespace. If the thread cannot be moved back it ends, rather than run other
// goroutines in the wrong namespace. f must not start goroutines that rely on
// the namespace.
func inNamespace(enter, f func() error) error {
	done := make(chan error, 1)
	go func() {
		done <- func() error {
			runtime.LockOSThread()
			home, err := os.Open(threadNamespace)
			if err != nil {
				runtime.UnlockOSThread()
				return err
			}
			defer home.Close()
			if err := enter(); err != nil {
				runtime.UnlockOSThread()
				return err
			}
			err = f()
			if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
				return errors.Join(err, fmt.Errorf("return to the host's namespace: %w", back)) // still locked: the thread ends
			}
			runtime.UnlockOSThread()
			return err
		}()
	}()
	return <-done
}

func enterNew() error { return unix.Unshare(unix.CLONE_NEWNET) }

func enterNamed(path string) func() error {
	return func() error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
	}
}

// pin keeps the calling thread's network namespace alive under path.
func pin(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	f.Close()
	return unix.Mount(threadNamespace, path, "", unix.MS_BIND, "")
}

// unpin takes the name back. The namespace, with its tap and rules, goes when no process is
// in it any more. It is no error when there is nothing to take back.
func unpin(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// pinned tells whether path holds a namespace.
func pinned(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

// shareNamespaceDir makes /run/netns a shared mount of its own, as ip-netns(8)
// does at its first use. Were that to happen later, it would cover the names
// pinned before, and they could not be removed.
func shareNamespaceDir() error {
	if err := os.MkdirAll(namespaceDir, 0o755); err != nil {
		return err
	}
	err := unix.Mount("", namespaceDir, "", unix.MS_SHARED|unix.MS_REC, "")
	if err == unix.EINVAL { // not a mount yet
		if err := unix.Mount(namespaceDir, namespaceDir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
		err = unix.Mount("", namespaceDir, "", unix.MS_SHARED|unix.MS_REC, "")
	}
	return err
}

// setOption writes a setting below /proc/sys/net of the calling thread's namespace.
func setOption(name, value string) error {
	f, err := os.OpenFile(filepath.Join("/proc/sys/net", name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
