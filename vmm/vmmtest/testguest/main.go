//go:build linux

// Command testguest is /init of the machines that the monitor tests boot: it
// loads the kernel modules it finds, opens the guest channel and answers one
// line with one line. It knows nothing of the guest agent's protocol, so that
// a failing monitor test names the monitor.
//
// Commands: "ping TEXT", "set TEXT", "get", "console N" (print N bytes on the
// console), "read DEV" and "write DEV TEXT" (first block of /dev/DEV), "mac",
// "serial DEV", "cpus", "count" (how often it was asked), "fill N" (write N MiB
// of memory and keep them), "sum" (of what fill wrote), "panic".
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const channel = "org.eqvps.guest.0"

func main() {
	for dir, kind := range map[string]string{"/proc": "proc", "/sys": "sysfs", "/dev": "devtmpfs"} {
		if err := unix.Mount(kind, dir, kind, 0, ""); err != nil {
			fatal("mount "+dir, err)
		}
	}
	useConsole()
	modules, _ := filepath.Glob("/modules/*.ko")
	for _, path := range modules { // Glob sorts: NN-name.ko is the order of loading
		if err := load(path); err != nil {
			fatal("load "+path, err)
		}
	}
	port, err := openChannel()
	if err != nil {
		fatal("open the guest channel", err)
	}
	fmt.Println("testguest: ready")
	serve(port)
}

// useConsole makes /dev/console the standard streams: the initramfs holds no
// device node, so the kernel started this program without any.
func useConsole() {
	fd, err := unix.Open("/dev/console", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		os.Exit(1)
	}
	for i := range 3 {
		if fd != i {
			unix.Dup3(fd, i, 0)
		}
	}
}

// fatal ends PID 1, and with it the kernel and the monitor.
func fatal(what string, err error) {
	fmt.Printf("testguest: %s: %v\n", what, err)
	os.Exit(1)
}

func load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
		return err
	}
	return nil
}

// openChannel waits for the port to appear: the device is probed while this
// program already runs.
func openChannel() (*os.File, error) {
	for range 12_000 { // a minute: the host may be busy
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, name := range names {
			if b, _ := os.ReadFile(name); strings.TrimSpace(string(b)) == channel {
				dev := "/dev/" + filepath.Base(filepath.Dir(name))
				if fd, err := unix.Open(dev, unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
					return os.NewFile(uintptr(fd), dev), nil
				}
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil, fmt.Errorf("no port is named %s", channel)
}

// serve answers lines for ever. A read returns EOF at once while the host side
// is closed, hence the pause.
func serve(port *os.File) {
	var m memory
	in := bufio.NewReader(port)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			if err != io.EOF {
				fatal("read", err)
			}
			time.Sleep(5 * time.Millisecond)
			in.Reset(port)
			continue
		}
		answer, err := do(strings.TrimSuffix(line, "\n"), &m)
		if err != nil {
			answer = "error: " + err.Error()
		}
		io.WriteString(port, answer+"\n")
	}
}

// memory is what this program remembers and a restored machine must still know.
type memory struct {
	value string
	count int
	fill  []byte
}

func do(line string, m *memory) (string, error) {
	command, rest, _ := strings.Cut(line, " ")
	switch command {
	case "ping":
		return "pong " + rest, nil
	case "set":
		m.value = rest
		return "ok", nil
	case "get":
		return m.value, nil
	case "count":
		m.count++
		return strconv.Itoa(m.count), nil
	case "fill":
		n, err := strconv.Atoi(rest)
		if err != nil {
			return "", err
		}
		m.fill = make([]byte, n<<20)
		x := uint64(88172645463325252)
		for i := 0; i < len(m.fill); i += 8 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			binary.NativeEndian.PutUint64(m.fill[i:], x)
		}
		return "ok", nil
	case "sum":
		return fmt.Sprintf("%08x", crc32.ChecksumIEEE(m.fill)), nil
	case "console":
		n, err := strconv.Atoi(rest)
		if err != nil {
			return "", err
		}
		if _, err := os.Stdout.Write(bytes.Repeat([]byte("0123456789abcde\n"), n/16)); err != nil {
			return "", err
		}
		// The terminal buffers: wait until the serial port has sent it all.
		return "ok", unix.IoctlSetInt(1, unix.TCSBRK, 1)
	case "read":
		f, err := os.Open("/dev/" + rest)
		if err != nil {
			return "", err
		}
		defer f.Close()
		block := make([]byte, 512)
		_, err = io.ReadFull(f, block)
		return string(bytes.TrimRight(block, "\x00")), err
	case "write":
		dev, text, _ := strings.Cut(rest, " ")
		f, err := os.OpenFile("/dev/"+dev, os.O_WRONLY|os.O_SYNC, 0)
		if err != nil {
			return "", err
		}
		defer f.Close()
		block := make([]byte, 512)
		copy(block, text)
		_, err = f.Write(block)
		return "ok", err
	case "mac":
		b, err := os.ReadFile("/sys/class/net/eth0/address")
		return strings.TrimSpace(string(b)), err
	case "serial":
		b, err := os.ReadFile("/sys/block/" + filepath.Base(rest) + "/serial")
		return strings.TrimSpace(string(b)), err
	case "cpus":
		return strconv.Itoa(runtime.NumCPU()), nil
	case "panic":
		return "", os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0)
	}
	return "", fmt.Errorf("unknown command %q", command)
}
