package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps/guest/agent"
)

// bootName is the host name until the machine gets its own: as long as that of
// a sandbox, so that a file which carries it keeps its length.
const bootName = "sb-00000000000000000000"

// identityDir holds the files that carry a machine's identity, and /etc has
// links to them. In memory, and open since boot, they cost a clone a quarter of
// what the first write to its disk does.
const identityDir = "/run/eqvps"

// identity is where this machine keeps what makes it one of its own.
type identity struct {
	random                     *os.File
	hostname, hosts, machineID *os.File
}

func openIdentity() (*identity, error) {
	if err := os.MkdirAll(identityDir, 0o755); err != nil {
		return nil, err
	}
	id := &identity{}
	var err error
	if id.random, err = os.OpenFile("/dev/urandom", os.O_WRONLY, 0); err != nil {
		return nil, err
	}
	for name, f := range map[string]**os.File{
		"hostname": &id.hostname, "hosts": &id.hosts, "machine-id": &id.machineID,
	} {
		file, link := identityDir+"/"+name, "/etc/"+name
		if *f, err = os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o644); err != nil {
			return nil, err
		}
		if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if err := os.Symlink(file, link); err != nil {
			return nil, err
		}
	}
	if err := unix.Sethostname([]byte(bootName)); err != nil {
		return nil, err
	}
	return id, id.write(bootName, strings.Repeat("0", 32))
}

// renew takes an identity. Randomness comes first: whatever follows may need
// it.
func (id *identity) renew(to agent.Identity) error {
	if err := addEntropy(int(id.random.Fd()), to.Entropy); err != nil {
		return fmt.Errorf("entropy: %w", err)
	}
	if err := setClock(time.Unix(0, to.UnixNano)); err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	if err := unix.Sethostname([]byte(to.Hostname)); err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	return id.write(to.Hostname, to.MachineID)
}

func (id *identity) write(hostname, machineID string) error {
	return errors.Join(
		rewrite(id.hostname, hostname+"\n"),
		rewrite(id.hosts, "127.0.0.1\tlocalhost\n127.0.1.1\t"+hostname+"\n::1\tlocalhost ip6-localhost ip6-loopback\n"),
		rewrite(id.machineID, machineID+"\n"),
	)
}

// rewrite gives a file a new content in place.
func rewrite(f *os.File, content string) error {
	if _, err := f.WriteAt([]byte(content), 0); err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil || st.Size() == int64(len(content)) {
		return err
	}
	return f.Truncate(int64(len(content)))
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
func addEntropy(fd int, seed []byte) error {
	if len(seed) < 32 {
		return fmt.Errorf("%d bytes; at least 32 are needed", len(seed))
	}
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
