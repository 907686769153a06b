package network

import (
	"bufio"
	"io"
	"net/netip"
	"os"
	"strings"
)

// resolvConf are the files that may name the host's resolvers. The second
// has the real ones where the first names only systemd-resolved's loopback stub.
var resolvConf = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// resolver returns the DNS server behind the gateway of a new slot.
func (m *Manager) resolver() (netip.Addr, bool) {
	all := m.cfg.Resolvers
	if len(all) == 0 {
		all = hostResolvers(resolvConf...)
	}
	if len(all) == 0 {
		return netip.Addr{}, false
	}
	return all[0], true
}

// hostResolvers returns the usable resolvers of the first file that names any.
func hostResolvers(files ...string) []netip.Addr {
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		found := parseResolvers(f)
		f.Close()
		if len(found) > 0 {
			return found
		}
	}
	return nil
}

// parseResolvers reads the format of resolv.conf(5) and returns the usable
// servers in order.
func parseResolvers(r io.Reader) []netip.Addr {
	var found []netip.Addr
	lines := bufio.NewScanner(io.LimitReader(r, 1<<20))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil && usableResolver(a) {
			found = append(found, a.Unmap())
		}
	}
	return found
}

// usableResolver tells whether a slot could reach a server at a: a loopback
// address would mean the slot itself.
func usableResolver(a netip.Addr) bool {
	a = a.Unmap()
	return a.Is4() && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
