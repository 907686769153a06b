package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/eqvps/eqvps"
)

// Slot is one network namespace ready for a monitor. A slot serves one
// sandbox and is then closed, never used again, so that nothing of one tenant
// reaches another. Its methods are safe for concurrent use.
type Slot struct {
	m   *Manager
	rec record

	mu     sync.Mutex
	closed bool
}

// Create makes a slot. A slot that fails half-way leaves nothing behind.
func (m *Manager) Create(ctx context.Context) (*Slot, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	resolver, _ := m.resolver()
	s := &Slot{m: m}
	claimed := false
	err := m.locked(func() error {
		err := m.do("claim slot", func() (err error) {
			s.rec, err = m.claim()
			return err
		})
		if err != nil {
			return err
		}
		claimed = true
		m.remember(s)
		return m.prepareHost(resolver)
	})
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = m.build(s.rec, resolver)
	}
	if err == nil {
		return s, nil
	}
	if claimed {
		err = errors.Join(err, s.Close(context.WithoutCancel(ctx)))
		m.forget(s)
	}
	return nil, fmt.Errorf("network: make a slot: %w", err)
}

// build makes everything that a claimed slot consists of.
func (m *Manager) build(rec record, resolver netip.Addr) error {
	if err := m.do("share namespace folder", shareNamespaceDir); err != nil {
		return err
	}
	if err := m.step("make namespace"); err != nil {
		return err
	}
	if err := inNamespace(enterNew, func() error { return m.furnish(rec, resolver) }); err != nil {
		return err
	}
	return m.do("set up host end", func() error {
		// An address of its own on IPv6 would let the slot's link speak it to the host.
		if err := setOption("ipv6/conf/"+rec.veth()+"/disable_ipv6", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := setOption(forwardingOption(rec.veth()), "1"); err != nil {
			return err
		}
		return setUpLink(m.links, rec.veth(), rec.hostEnd())
	})
}

// furnish fills the new namespace that the calling thread is in. The rules
// come before the devices, so that no packet ever passes without them.
func (m *Manager) furnish(rec record, resolver netip.Addr) error {
	path := namespacePath(rec.index)
	if err := m.do("pin namespace", func() error { return pin(path) }); err != nil {
		return err
	}
	if err := m.do("set namespace options", setSlotOptions); err != nil {
		return err
	}
	if err := m.do("write slot rules", slotTable(resolver, eqvps.NetworkPolicy{}).create); err != nil {
		return err
	}
	links, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer links.Close()
	mtu := m.MTU()
	if err := m.do("make tap", func() error { return m.makeTap(rec.index) }); err != nil {
		return err
	}
	if err := m.do("set up tap", func() error { return setUpTap(links, mtu) }); err != nil {
		return err
	}
	if err := m.do("make veth", func() error { return m.makeVeth(rec, path, mtu) }); err != nil {
		return err
	}
	return m.do("set up slot end", func() error {
		if err := setUpLink(links, uplinkName, rec.slotEnd()); err != nil {
			return err
		}
		return links.RouteAdd(&netlink.Route{Gw: net.ParseIP(rec.hostEnd())})
	})
}

func setSlotOptions() error {
	for _, o := range []struct{ name, value string }{
		{"ipv4/icmp_ratelimit", "0"}, // every refusal reaches the guest, also the tenth in a second
		{"ipv6/conf/all/disable_ipv6", "1"},
		{"ipv6/conf/default/disable_ipv6", "1"},
		{"ipv4/ip_forward", "1"},
	} {
		err := setOption(o.name, o.value)
		if errors.Is(err, os.ErrNotExist) && strings.HasPrefix(o.name, "ipv6/") {
			continue // a kernel without IPv6
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) makeTap(index int) error {
	if m.cfg.TapOwner == nil {
		return makeTap(0, 0)
	}
	return makeTap(m.cfg.TapOwner(index))
}

// makeVeth creates the pair with one end on the host and the other in the slot.
func (m *Manager) makeVeth(rec record, namespace string, mtu int) error {
	ns, err := os.Open(namespace)
	if err != nil {
		return err
	}
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = rec.veth(), mtu
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = uplinkName, netlink.NsFd(ns.Fd())
	return m.links.LinkAdd(veth)
}

func setUpLink(links *netlink.Handle, name, addr string) error {
	link, err := links.LinkByName(name)
	if err != nil {
		return err
	}
	if err := links.AddrAdd(link, &netlink.Addr{IPNet: ipNet(addr)}); err != nil {
		return err
	}
	return links.LinkSetUp(link)
}

// Open returns a slot made earlier, perhaps by a process that was killed. It
// returns ErrGone when the slot is not whole any more; Reclaim then removes what is left.
func (m *Manager) Open(index int) (*Slot, error) {
	m.mu.Lock()
	s := m.open[index]
	m.mu.Unlock()
	if s != nil {
		return s, nil
	}
	rec, err := m.record(index)
	if errors.Is(err, os.ErrNotExist) || err == nil && rec.Owner != m.cfg.Owner {
		return nil, fmt.Errorf("network: slot %d: %w", index, ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("network: read the record of slot %d: %w", index, err)
	}
	if err := m.whole(rec); err != nil {
		return nil, fmt.Errorf("network: slot %d: %w: %w", index, ErrGone, err)
	}
	resolver, _ := m.resolver()
	if err := m.locked(func() error { return m.prepareHost(resolver) }); err != nil {
		return nil, fmt.Errorf("network: open slot %d: %w", index, err)
	}
	s = &Slot{m: m, rec: rec}
	return m.remember(s), nil
}

// whole checks that all of a slot's devices exist.
func (m *Manager) whole(rec record) error {
	path := namespacePath(rec.index)
	if !pinned(path) {
		return errors.New("its namespace is missing")
	}
	if _, err := m.links.LinkByName(rec.veth()); err != nil {
		return fmt.Errorf("%s: %w", rec.veth(), err)
	}
	return inNamespace(enterNamed(path), func() error {
		if _, err := net.InterfaceByName(TapName); err != nil {
			return fmt.Errorf("%s: %w", TapName, err)
		}
		return nil
	})
}

// remember registers an open slot; of two for the same index the first wins.
func (m *Manager) remember(s *Slot) *Slot {
	m.mu.Lock()
	defer m.mu.Unlock()
	if first := m.open[s.rec.index]; first != nil {
		return first
	}
	m.open[s.rec.index] = s
	return s
}

// forget ends the registration of s, but not that of a successor in its index.
func (m *Manager) forget(s *Slot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open[s.rec.index] == s {
		delete(m.open, s.rec.index)
	}
}

func (m *Manager) opened(index int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open[index] != nil
}

// Close removes the slot. Call it once the monitor has ended: a process still in
// the namespace keeps it alive, though without a network. Close may be
// repeated; after an error it can be tried again, here or by Reclaim in a
// later run.
func (s *Slot) Close(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	// Whoever removed its record, by hand perhaps, has given the index away: what
	// is there now may be another's.
	now, err := s.m.record(s.rec.index)
	if err == nil && now.Created.Equal(s.rec.Created) {
		err = s.m.tearDown(s.rec)
	} else {
		s.m.forget(s)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("network: remove slot %d: %w", s.rec.index, err)
	}
	s.closed = true
	return nil
}

// tearDown removes whatever there is of a slot, newest first.
func (m *Manager) tearDown(rec record) error {
	err := m.do("remove veth", func() error {
		link, err := m.links.LinkByName(rec.veth())
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if err != nil {
			return err
		}
		return m.links.LinkDel(link)
	})
	if err != nil {
		return err
	}
	if err := m.do("unpin namespace", func() error { return unpin(namespacePath(rec.index)) }); err != nil {
		return err
	}
	return m.locked(func() error {
		all, err := m.records()
		if err != nil {
			return err
		}
		delete(all, rec.index)
		if len(all) == 0 {
			if err := m.restoreHost(); err != nil {
				return err
			}
		}
		return m.do("release slot", func() error {
			if err := os.Remove(m.recordPath(rec.index)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.open, rec.index) // before anybody else can claim the index
			return nil
		})
	})
}

// Index identifies the slot on this host, for Open after a restart.
func (s *Slot) Index() int { return s.rec.index }

// Claimed is when the slot was made: it tells the slot from a later one that
// was given the same index.
func (s *Slot) Claimed() time.Time { return s.rec.Created }

// Namespace is the path of the slot's network namespace.
func (s *Slot) Namespace() string { return namespacePath(s.rec.index) }

// Tap is the name of the tap device inside the namespace.
func (s *Slot) Tap() string { return TapName }

// GuestMAC is the MAC that the guest's device must have.
func (s *Slot) GuestMAC() string { return GuestMAC }

// SetPolicy holds the slot's guest to a policy of its own, in place of the one
// before: in one transaction, with no moment without rules. Connections that it
// forbids go no further.
func (s *Slot) SetPolicy(p eqvps.NetworkPolicy) error {
	resolver, _ := s.m.resolver()
	err := inNamespace(enterNamed(s.Namespace()), func() error {
		return s.m.do("write sandbox rules", slotTable(resolver, p).replace)
	})
	if err != nil {
		return fmt.Errorf("network: set the policy of slot %d: %w", s.rec.index, err)
	}
	return nil
}

// EgressBytes is what has left the slot towards the host since it was made,
// in bytes, Ethernet headers included. Traffic that the slot itself refused is not in
// it.
func (s *Slot) EgressBytes() (uint64, error) {
	link, err := s.m.links.LinkByName(s.rec.veth())
	if err != nil {
		return 0, fmt.Errorf("network: read the counters of slot %d: %w", s.rec.index, err)
	}
	return link.Attrs().Statistics.RxBytes, nil
}
