package network

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// uplinks are the devices of the host's IPv4 default routes, and the largest
// packet that all of them carry.
type uplinks struct {
	names []string
	mtu   int
}

func (m *Manager) uplinks() (uplinks, error) {
	routes, err := m.links.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return uplinks{}, fmt.Errorf("network: list the host's routes: %w", err)
	}
	up := uplinks{mtu: 1500}
	for _, r := range routes {
		if r.Type != unix.RTN_UNICAST || r.Dst != nil && !bytes.Equal(r.Dst.Mask, []byte{0, 0, 0, 0}) {
			continue
		}
		devices := []int{r.LinkIndex}
		for _, hop := range r.MultiPath {
			devices = append(devices, hop.LinkIndex)
		}
		if r.MTU >= minMTU {
			up.mtu = min(up.mtu, r.MTU)
		}
		for _, index := range devices {
			link, err := m.links.LinkByIndex(index)
			if err != nil {
				continue // a multipath route has no device of its own
			}
			if mtu := link.Attrs().MTU; mtu >= minMTU {
				up.mtu = min(up.mtu, mtu)
			}
			up.names = append(up.names, link.Attrs().Name)
		}
	}
	slices.Sort(up.names)
	up.names = slices.Compact(up.names)
	return up, nil
}

// minMTU is what every IPv4 host must accept. A route that claims less is not believed.
const minMTU = 576

func (m *Manager) openedPath() string { return filepath.Join(m.cfg.RunDir, "forwarding") }

// openedDevices reads which devices forward only because slots exist.
func (m *Manager) openedDevices() ([]string, error) {
	data, err := os.ReadFile(m.openedPath())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(data)), err
}

func (m *Manager) setOpenedDevices(devices []string) error {
	if len(devices) == 0 {
		err := os.Remove(m.openedPath())
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	return replaceFile(m.openedPath(), filepath.Join(m.cfg.RunDir, "new"), []byte(strings.Join(devices, "\n")+"\n"))
}

// prepareHost makes the host ready for slots, also again after somebody
// flushed its rules or its default route moved. The caller holds the lock.
func (m *Manager) prepareHost(resolver netip.Addr) error {
	up, err := m.uplinks()
	if err != nil {
		return err
	}
	var opened []string
	if err := m.do("forward uplinks", func() (err error) {
		opened, err = m.forwardUplinks(up.names)
		return err
	}); err != nil {
		return err
	}
	known, exists, err := hostResolverSet()
	if err != nil {
		return err
	}
	want := hostParams{resolvers: known, opened: opened}
	if resolver.IsValid() && !slices.Contains(known, resolver) {
		want.resolvers = append(want.resolvers, resolver)
	}
	slices.SortFunc(want.resolvers, netip.Addr.Compare)

	m.mu.Lock()
	m.mtu = up.mtu
	current := exists && slices.Equal(want.resolvers, m.host.resolvers) && slices.Equal(want.opened, m.host.opened)
	m.mu.Unlock()
	if current {
		return nil
	}
	if err := m.do("write host rules", hostTable(want).replace); err != nil {
		return err
	}
	m.mu.Lock()
	m.host = want
	m.mu.Unlock()
	return nil
}

// forwardUplinks switches forwarding on where it is off, and returns the
// devices where only we did so.
func (m *Manager) forwardUplinks(names []string) ([]string, error) {
	opened, err := m.openedDevices()
	if err != nil {
		return nil, err
	}
	if forwards("ipv4/ip_forward") {
		// Somebody made the host a router meanwhile: no device is ours to
		// guard or to switch off any more.
		return nil, m.setOpenedDevices(nil)
	}
	for _, name := range names {
		option := forwardingOption(name)
		if forwards(option) {
			continue
		}
		if !slices.Contains(opened, name) {
			opened = append(opened, name)
			slices.Sort(opened)
			if err := m.setOpenedDevices(opened); err != nil {
				return nil, err
			}
		}
		if err := setOption(option, "1"); err != nil {
			return nil, err
		}
	}
	return opened, nil
}

func forwardingOption(device string) string { return "ipv4/conf/" + device + "/forwarding" }

func forwards(option string) bool {
	data, err := os.ReadFile(filepath.Join("/proc/sys/net", option))
	return err == nil && strings.TrimSpace(string(data)) == "1"
}

// hostResolverSet reads the resolvers that the host's table lets guests
// reach, and whether there is a table.
func hostResolverSet() (known []netip.Addr, exists bool, err error) {
	c, err := nftables.New()
	if err != nil {
		return nil, false, err
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, false, fmt.Errorf("list the host's rules: %w", err)
	}
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == tableName })
	if i < 0 {
		return nil, false, nil
	}
	elems, err := c.GetSetElements(&nftables.Set{Table: tables[i], Name: resolverSet, KeyType: nftables.TypeIPAddr})
	if err != nil {
		return nil, false, fmt.Errorf("read the host's rules: %w", err)
	}
	for _, e := range elems {
		if a, ok := netip.AddrFromSlice(e.Key); ok {
			known = append(known, a)
		}
	}
	return known, true, nil
}

// restoreHost undoes prepareHost. The caller holds the lock.
func (m *Manager) restoreHost() error {
	err := m.do("restore forwarding", func() error {
		opened, err := m.openedDevices()
		if err != nil {
			return err
		}
		if !forwards("ipv4/ip_forward") {
			for _, name := range opened {
				if err := setOption(forwardingOption(name), "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
					return err
				}
			}
		}
		return m.setOpenedDevices(nil)
	})
	if err != nil {
		return err
	}
	return m.do("remove host rules", func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		discard(c)
		return c.Flush()
	})
}
