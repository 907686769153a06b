// Package network gives each sandbox a network of its own: a slot. A slot is
// one network namespace with a tap device for the monitor on the inside and
// one veth pair to the host on the outside.
//
//	guest 10.0.0.2 ── tap0 10.0.0.1 [slot: filter, NAT] uplink ── eqvN [host: filter, NAT] ── the host's uplink
//
// Every guest sees the same addresses, device name and MACs, so one snapshot
// serves every slot. Uniqueness is outside: the veth pair of slot N has the
// Nth /30 of a private range, the slot translates the guest's address to it,
// and the host translates that to its own.
//
// # Policy
//
// Outbound is open, nothing inbound reaches a guest. Package-level data
// (policy.go) lists what guests may not reach, with the reasons; the
// nftables rules and the text that Policy prints both come from it. The
// slot's rules are in force before its devices exist, and the host enforces
// them a second time, ahead of any port forwarding of its own. A process inside
// the slot, such as a monitor that its guest took over, can open no connection.
// What a guest may not reach refuses it at once (TCP reset, ICMP
// administratively prohibited); only forged packets vanish silently.
//
// DNS goes to the gateway alone, which passes it to the first IPv4 resolver
// of the host. One resolver and not several in turn: a client that retries
// stays on its first flow, so alternating would only make failures erratic.
//
// # What changes on the host
//
// One nftables table, inet eqvps, whose rules look only at devices named
// eqv*; making or removing a slot does not touch it. Forwarding is switched
// on per device, for the veth and for the devices of default routes, never
// globally. On a device where it was off, the table also drops new
// connections that would now be routed elsewhere, so the host does not become
// a router by the way. Last, /run/netns becomes a shared mount, as with
// ip-netns(8). The table and the forwarding go when the last slot of
// the host goes. Rules of others still apply: where another firewall drops
// forwarded packets by default, it has to let devices eqv* pass.
//
// # Crashes and neighbours
//
// A slot's anchor is its record in RunDir: made first, removed last, and
// never reused while anything of the slot is left. Several servers share a
// host through these records and one lock; every record names its owner,
// and an owner reclaims what its last run left behind.
package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What every guest sees, whatever its slot.
const (
	GuestAddr   = "10.0.0.2"          // the guest's address
	GatewayAddr = "10.0.0.1"          // the guest's router and its only resolver
	PrefixLen   = 30                  // of the guest's network
	GuestMAC    = "02:00:0a:00:00:02" // the only MAC a guest may send from
	GatewayMAC  = "02:00:0a:00:00:01" // the tap's MAC; fixed, so that the neighbour entry in a snapshot stays true
	TapName     = "tap0"              // the tap's name in every slot
)

// Defaults of Config.
const (
	DefaultRunDir = "/run/eqvps"
	DefaultRange  = "100.127.0.0/16"
)

const (
	namespaceDir    = "/run/netns"
	namespacePrefix = "eqvps-"
	uplinkName      = "uplink" // the slot's end of the veth pair
	vethPrefix      = "eqv"    // the host's end is eqv<index>
)

var (
	// ErrGone is returned by Open when the slot, or part of it, no longer exists.
	ErrGone = errors.New("the network slot is gone")
	// ErrFull is returned by Create when every /30 of the range is taken.
	ErrFull = errors.New("every network slot of the range is in use: delete sandboxes or configure a wider range")
	// ErrClosed is returned by Pool.Get after Pool.Close.
	ErrClosed = errors.New("the network slot pool is closed")
)

// Config is how one server makes slots.
type Config struct {
	// Owner names the server in its slots' records, e.g. by its data folder.
	// The caller sees to it that no two running servers share a name. Required.
	Owner string
	// Range holds the /30 networks between slots and host. It must lie in a
	// range that guests cannot reach and that the host does not use. Default 100.127.0.0/16.
	Range netip.Prefix
	// RunDir holds the records of all servers of the host. It must not
	// survive a reboot, and all servers of a host must use the same. Default /run/eqvps.
	RunDir string
	// Resolvers are the DNS servers behind the gateway, of which the first is
	// used. IPv4 only. Default: the host's, read anew for each slot.
	Resolvers []netip.Addr
	// TapOwner returns the user and group, besides root, that may attach to the tap
	// of a slot. Default: nobody else.
	TapOwner func(index int) (uid, gid int)
	// OwnerGone tells whether another owner is known to be gone for good, so
	// that Reclaim may remove its slots too. Default: never.
	OwnerGone func(owner string) bool
	// Step is called before each privileged step, with its label. An error
	// stops there; it exists so that tests can break each step. Default: none.
	Step func(label string) error
}

// Manager makes and removes the slots of one server. It is safe for
// concurrent use. It works in the network namespace that the process is in.
type Manager struct {
	cfg      Config
	links    *netlink.Handle // of the host
	warnings []string

	mu   sync.Mutex
	open map[int]*Slot
	host hostParams // what the host's table was last written with by us
	mtu  int
}

// New checks that this process can make slots. It changes nothing on the
// host: that waits for the first slot. Its errors say what to change.
func New(cfg Config) (*Manager, error) {
	if cfg.Owner == "" {
		return nil, errors.New("network: the configuration names no owner")
	}
	if cfg.RunDir == "" {
		cfg.RunDir = DefaultRunDir
	}
	if !cfg.Range.IsValid() {
		cfg.Range = netip.MustParsePrefix(DefaultRange)
	}
	cfg.Range = cfg.Range.Masked()
	if err := checkRange(cfg.Range); err != nil {
		return nil, err
	}
	for _, r := range cfg.Resolvers {
		if !usableResolver(r) {
			return nil, fmt.Errorf("network: resolver %s cannot be used: name an IPv4 address that is not a loopback address", r)
		}
	}
	if err := checkPrivileges(); err != nil {
		return nil, err
	}
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("network: open a netlink socket: %w", err)
	}
	m := &Manager{cfg: cfg, links: links, open: map[int]*Slot{}}
	if err := m.check(); err != nil {
		links.Close()
		return nil, err
	}
	return m, nil
}

// Close ends the manager's use of the kernel. Slots stay as they are, for the
// next run to open or reclaim; close them first to be rid of them.
func (m *Manager) Close() { m.links.Close() }

// check looks at the host: overlapping addresses, resolvers, MTU.
func (m *Manager) check() error {
	addrs, err := m.links.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("network: list the host's addresses: %w", err)
	}
	for _, a := range addrs {
		ip, _ := netip.AddrFromSlice(a.IP.To4())
		if m.cfg.Range.Contains(ip) && !isSlotDevice(a.Label) {
			return fmt.Errorf("network: the range %s overlaps the host's own address %s: configure another private range", m.cfg.Range, ip)
		}
	}
	if _, ok := m.resolver(); !ok {
		m.warnings = append(m.warnings, "Guests cannot resolve names: the host names only loopback or IPv6 resolvers; configure an IPv4 resolver.")
	}
	up, err := m.uplinks()
	if err != nil {
		return err
	}
	if len(up.names) == 0 {
		m.warnings = append(m.warnings, "Guests cannot reach the internet: the host has no IPv4 default route.")
	}
	m.mtu = up.mtu
	return nil
}

// Warnings are sentences for people about what slots here cannot do.
func (m *Manager) Warnings() []string { return slices.Clone(m.warnings) }

// MTU is the largest packet, in bytes, that the host's default routes carry,
// for the guest to be told; taps and veths have it. A guest that believes in
// more still works: the slot lowers the TCP segment size of its connections.
func (m *Manager) MTU() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mtu
}

// step announces a privileged step to the configuration's hook.
func (m *Manager) step(label string) error {
	if m.cfg.Step == nil {
		return nil
	}
	if err := m.cfg.Step(label); err != nil {
		return fmt.Errorf("%s: %w", label, err)
	}
	return nil
}

// do announces a step, takes it and labels its error.
func (m *Manager) do(label string, f func() error) error {
	if err := m.step(label); err != nil {
		return err
	}
	if err := f(); err != nil {
		return fmt.Errorf("%s: %w", label, err)
	}
	return nil
}

func checkRange(r netip.Prefix) error {
	if !r.Addr().Is4() || r.Bits() > 30 {
		return fmt.Errorf("network: the range %s holds no slot: configure an IPv4 prefix of length 30 or shorter", r)
	}
	for _, b := range blockedRanges {
		if b.prefix.Bits() <= r.Bits() && b.prefix.Contains(r.Addr()) {
			return nil
		}
	}
	return fmt.Errorf("network: the range %s is not closed to guests: configure one inside 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or 100.64.0.0/10", r)
}

func checkPrivileges() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return fmt.Errorf("network: read the process's capabilities: %w", err)
	}
	const need = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_SYS_ADMIN
	if data[0].Effective&need != need {
		return errors.New("network: making network namespaces needs CAP_NET_ADMIN and CAP_SYS_ADMIN: run the server as root")
	}
	if _, err := os.Stat(tunDevice); err != nil {
		return fmt.Errorf("network: the host has no %s: load the kernel module tun", tunDevice)
	}
	return nil
}
