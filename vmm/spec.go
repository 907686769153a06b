package vmm

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
)

// What every monitor can do; Validate refuses more.
const (
	MaxVCPUs     = 64
	MaxMemoryMiB = 1 << 20
	MaxDisks     = 5  // a QEMU microvm has 8 device slots, and 3 are taken
	MaxSerial    = 20 // bytes of a disk's serial, by the virtio standard
	maxTapName   = 15 // bytes of a network device's name, by Linux
)

var (
	idPattern   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	namePattern = regexp.MustCompile(`^[A-Za-z0-9._-]*$`)
)

// Validate refuses a spec that no monitor could run or that would be misread
// on a command line. It looks at no file.
func (s Spec) Validate() error {
	bad := func(format string, a ...any) error { return fmt.Errorf("machine spec: "+format, a...) }
	switch {
	case !idPattern.MatchString(s.ID):
		return bad("the id %q must be at most 100 letters, digits, dots, dashes and underscores, and start with a letter or digit", s.ID)
	case !filepath.IsAbs(s.Dir):
		return bad("the folder %q must be an absolute path", s.Dir)
	case s.VCPUs < 1 || s.VCPUs > MaxVCPUs:
		return bad("%d processors: give 1 to %d", s.VCPUs, MaxVCPUs)
	case s.MemoryMiB < 1 || s.MemoryMiB > MaxMemoryMiB:
		return bad("%d MiB of memory: give 1 to %d", s.MemoryMiB, MaxMemoryMiB)
	case len(s.Disks) > MaxDisks:
		return bad("%d disks: give at most %d", len(s.Disks), MaxDisks)
	}
	for _, d := range s.Disks {
		if !filepath.IsAbs(d.Path) {
			return bad("the disk %q must be an absolute path", d.Path)
		}
		if len(d.Serial) > MaxSerial || !namePattern.MatchString(d.Serial) {
			return bad("the disk serial %q must be at most %d letters, digits, dots, dashes and underscores", d.Serial, MaxSerial)
		}
	}
	if n := s.Network; n != nil {
		if !filepath.IsAbs(n.Namespace) {
			return bad("the network namespace %q must be an absolute path", n.Namespace)
		}
		if n.Tap == "" || len(n.Tap) > maxTapName || !namePattern.MatchString(n.Tap) {
			return bad("the tap %q must be 1 to %d letters, digits, dots, dashes and underscores", n.Tap, maxTapName)
		}
		if mac, err := net.ParseMAC(n.MAC); err != nil || len(mac) != 6 {
			return bad("the address %q must be a MAC such as 02:00:00:00:00:02", n.MAC)
		}
	}
	return nil
}
