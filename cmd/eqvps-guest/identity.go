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

// identity is where this machine keeps what makes it one of its own. All of it
// is opened at boot: a clone then writes in place, and neither looks up paths
// nor copies files up from the image.
type identity struct {
	random                     *os.File
	hostname, hosts, machineID *os.File
}

func openIdentity() (*identity, error) {
	id := &identity{}
	for _, f := range []struct {
		p    **os.File
		name string
		flag int
		mode os.FileMode
	}{
		{&id.random, "/dev/urandom", os.O_WRONLY, 0},
		{&id.hostname, "/etc/hostname", os.O_WRONLY | os.O_CREATE, 0o644},
		{&id.hosts, "/etc/hosts", os.O_WRONLY | os.O_CREATE, 0o644},
		{&id.machineID, "/etc/machine-id", os.O_WRONLY | os.O_CREATE, 0o444},
	} {
		var err error
		if *f.p, err = os.OpenFile(f.name, f.flag, f.mode); err != nil {
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
