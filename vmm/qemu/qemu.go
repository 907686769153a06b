// Package qemu runs machines with QEMU's microvm machine type, on hardware KVM
// where the processor has it and in software emulation (TCG) elsewhere.
//
// A monitor is a child process that outlives this one: it is its own session,
// its sockets live in the machine's folder and it keeps the listening ends
// itself, so that a server that was killed and started again reaches it as
// before. The sockets are bound here and inherited, which has two more uses:
// a connection succeeds before QEMU has even loaded, and the whole start
// conversation is written at once and waits in the socket.
package qemu

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/eqvps/eqvps/vmm"
)

// Name is what Info and Handle call this monitor.
const Name = "qemu"

const (
	program    = "qemu-system-x86_64"
	oldestText = "7.2" // parseVersion compares with it
)

// Monitor starts machines with QEMU. The zero value is not usable; call New.
type Monitor struct {
	mu   sync.Mutex
	host *host
}

// New returns a monitor that uses the QEMU installed on this host. It does
// nothing yet: Info tells whether a machine can be started.
func New() *Monitor { return &Monitor{} }

// host is what does not change while this process runs.
type host struct {
	path    string // of QEMU
	version string
	accel   accelerator
	tscKHz  int // rate of the host's time stamp counter, 0 when unknown
}

// Info describes the QEMU of this host and the accelerator it will use. It
// fails when QEMU is missing or too old.
func (m *Monitor) Info(ctx context.Context) (vmm.Info, error) {
	h, err := m.inspect(ctx)
	if err != nil {
		return vmm.Info{}, err
	}
	info := vmm.Info{
		Monitor:  Name,
		Version:  h.version,
		Accel:    h.accel.name,
		CPUModel: h.accel.cpu,
		Reason:   h.accel.reason,
		Warnings: []string{"QEMU runs with the rights of this server, confined by its own system call filter and in no jail."},
	}
	if h.accel.name == "tcg" {
		info.Warnings = append(info.Warnings,
			"Machines run in software emulation, which is no hard security boundary: use this host for development and for code you trust.")
	}
	return info, nil
}

// inspect looks at the host once. A failure is not remembered, so that an
// operator can install QEMU without restarting the server.
func (m *Monitor) inspect(ctx context.Context) (*host, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.host != nil {
		return m.host, nil
	}
	path, err := findBinary()
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --version failed, reinstall the package qemu-system-x86: %w", path, err)
	}
	version, err := parseVersion(string(out))
	if err != nil {
		return nil, err
	}
	h := &host{path: path, version: version, accel: chooseAccelerator("/proc/cpuinfo", "/dev/kvm")}
	if h.accel.name == "tcg" {
		h.tscKHz = tscKHz()
	}
	m.host = h
	return h, nil
}

func findBinary() (string, error) {
	for _, name := range []string{program, "/usr/bin/" + program} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New(program + " was not found: install the package qemu-system-x86")
}

var versionPattern = regexp.MustCompile(`QEMU emulator version (\d+)\.(\d+)(\.\d+)?`)

// parseVersion reads the first line of `qemu --version` and refuses releases
// older than the one whose microvm and migration this package relies on.
func parseVersion(out string) (string, error) {
	match := versionPattern.FindStringSubmatch(out)
	if match == nil {
		line, _, _ := strings.Cut(out, "\n")
		return "", fmt.Errorf("cannot read QEMU's version from %q: install QEMU %s or later", line, oldestText)
	}
	version := strings.TrimPrefix(match[0], "QEMU emulator version ")
	major, _ := strconv.Atoi(match[1])
	minor, _ := strconv.Atoi(match[2])
	if major < 7 || major == 7 && minor < 2 {
		return "", fmt.Errorf("QEMU %s is too old: install QEMU %s or later", version, oldestText)
	}
	return version, nil
}
