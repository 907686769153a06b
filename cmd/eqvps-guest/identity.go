package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps/guest/agent"
)

// identity is what makes this machine one of its own.
type identity struct {
	agent.Identity
	env []string
}

func parseIdentity(hello []byte) (*identity, error) {
	if len(hello) == 0 {
		return nil, errors.New("an identity is needed")
	}
	var id identity
	if err := json.Unmarshal(hello, &id.Identity); err != nil {
		return nil, err
	}
	for _, kv := range id.Env {
		id.env = append(id.env, string(kv))
	}
	return &id, nil
}

// apply takes the identity. Randomness comes first: whatever follows may need
// it.
func (id *identity) apply() error {
	if err := addEntropy(id.Entropy); err != nil {
		return fmt.Errorf("entropy: %w", err)
	}
	if err := setClock(time.Unix(0, id.UnixNano)); err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	if err := unix.Sethostname([]byte(id.Hostname)); err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	return writeIdentity(id.Hostname, id.MachineID)
}

// writeIdentity writes the files that carry a machine's name. They are written
// in place: boot has made them the sandbox's own already, so this is cheap.
func writeIdentity(hostname, machineID string) error {
	return errors.Join(
		os.WriteFile("/etc/hostname", []byte(hostname+"\n"), 0o644),
		os.WriteFile("/etc/hosts", []byte("127.0.0.1\tlocalhost\n127.0.1.1\t"+hostname+"\n::1\tlocalhost ip6-localhost ip6-loopback\n"), 0o644),
		os.WriteFile("/etc/machine-id", []byte(machineID+"\n"), 0o444),
	)
}

func setClock(t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	return unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
}

// Requests of /dev/random: see random(4).
const (
	rndAddEntropy = 0x40085203
	rndReseedCRNG = 0x5207
)

// addEntropy mixes fresh bytes into the kernel's pool, credits them in full,
// and has the generator and every state derived from it start anew at once.
// All clones of a snapshot give the same random bytes until this is done.
func addEntropy(seed []byte) error {
	if len(seed) < 32 {
		return fmt.Errorf("%d bytes; at least 32 are needed", len(seed))
	}
	fd, err := unix.Open("/dev/urandom", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// struct rand_pool_info: bits, bytes, data.
	info := binary.NativeEndian.AppendUint32(nil, uint32(8*len(seed)))
	info = binary.NativeEndian.AppendUint32(info, uint32(len(seed)))
	info = append(info, seed...)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), rndAddEntropy, uintptr(unsafe.Pointer(&info[0]))); errno != 0 {
		return errno
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), rndReseedCRNG, 0); errno != 0 {
		return errno
	}
	return nil
}
