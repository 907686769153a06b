package network

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestOutbound(t *testing.T) {
	m := newManager(t)
	g := newGuest(t, newSlot(t, m))
	client, server, err := greeting(g.path, publicAddr+":443")
	if err != nil {
		t.Fatal(err)
	}
	if client != hostAddr || server != publicAddr {
		t.Errorf("the server saw %s reach %s, want %s reach %s", client, server, hostAddr, publicAddr)
	}
	if err := ask(g.path, publicAddr+":9000"); err != nil {
		t.Error("UDP:", err)
	}
}

// The guest believes in 1500 bytes, the uplink carries 1400. Where no ICMP
// says so, a download would stall, were the segment size not lowered.
func TestLargeTransfersPassASmallerMTU(t *testing.T) {
	m := newManager(t)
	g := newGuest(t, newSlot(t, m))
	if got := m.MTU(); got != labMTU {
		t.Errorf("MTU is %d, want the uplink's %d", got, labMTU)
	}
	c, err := dialIn(g.path, "tcp4", publicAddr+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * patience))
	sent := make([]byte, 500_000)
	rand.Read(sent)
	go func() {
		c.Write(sent)
		c.(*net.TCPConn).CloseWrite()
	}()
	answer := bufio.NewReader(c)
	greeting, err := answer.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var client, server string
	var segment int
	if _, err := fmt.Sscan(greeting, &client, &server, &segment); err != nil {
		t.Fatal(err)
	}
	if segment < 1000 || segment > labMTU-40 {
		t.Errorf("the server may send segments of %d bytes, want what fits into %d with its headers", segment, labMTU)
	}
	got, err := io.ReadAll(answer)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(sent, got) {
		t.Errorf("%d bytes came back of %d, or others", len(got), len(sent))
	}
}

func TestNamesComeThroughTheGateway(t *testing.T) {
	m := newManager(t)
	g := newGuest(t, newSlot(t, m))
	if err := ask(g.path, GatewayAddr+":53"); err != nil {
		t.Error("UDP:", err)
	}
	if _, server, err := greeting(g.path, GatewayAddr+":53"); err != nil || server != resolverAddr {
		t.Errorf("TCP reached %q (%v), want the resolver %s", server, err, resolverAddr)
	}
}

func TestTheHostItselfCanBeTheResolver(t *testing.T) {
	l, err := net.Listen("tcp4", hostAddr+":53")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go serveTCP(l)
	m := newManager(t, func(c *Config) { c.Resolvers = []netip.Addr{netip.MustParseAddr(hostAddr)} })
	g := newGuest(t, newSlot(t, m))
	if _, server, err := greeting(g.path, GatewayAddr+":53"); err != nil || server != hostAddr {
		t.Errorf("reached %q (%v), want %s", server, err, hostAddr)
	}
	if _, _, err := greeting(g.path, hostAddr+":53"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("past the gateway: %v, want a refusal", err)
	}
}

func TestForbiddenDestinationsAreRefusedAtOnce(t *testing.T) {
	local, err := net.Listen("tcp4", "0.0.0.0:8080") // on every address of the host
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	go serveTCP(local)

	m := newManager(t)
	s := newSlot(t, m)
	neighbour := newSlot(t, m)
	g := newGuest(t, s)

	tcp := []string{
		hostAddr + ":8080", s.rec.hostEnd() + ":8080", neighbour.rec.hostEnd() + ":8080",
		publicAddr + ":25", publicAddr + ":465", publicAddr + ":587", publicAddr + ":53",
	}
	udp := []string{publicAddr + ":53", resolverAddr + ":53"}
	for _, a := range forbiddenAddrs {
		tcp, udp = append(tcp, a+":80"), append(udp, a+":9000")
	}
	for _, a := range tcp {
		if _, _, err := greeting("", a); err != nil {
			t.Errorf("TCP %s does not even work from the host, so its refusal would prove nothing: %v", a, err)
		}
		if _, _, err := greeting(g.path, a); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("TCP %s: %v, want a refusal", a, err)
		}
	}
	for _, a := range udp {
		if err := ask("", a); err != nil {
			t.Errorf("UDP %s does not even work from the host, so its refusal would prove nothing: %v", a, err)
		}
		if err := ask(g.path, a); err == nil || timedOut(err) {
			t.Errorf("UDP %s: %v, want a refusal", a, err)
		}
	}
	// No server could be there; still the answer must be quick.
	for _, a := range []string{GatewayAddr + ":80", neighbour.rec.slotEnd() + ":80"} {
		if _, _, err := greeting(g.path, a); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("TCP %s: %v, want a refusal", a, err)
		}
	}
}

// A slot that lost its rules still meets the host's.
func TestTheHostRulesHoldAlone(t *testing.T) {
	local, err := net.Listen("tcp4", "0.0.0.0:8080")
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	go serveTCP(local)
	m := newManager(t)
	s, neighbour := newSlot(t, m), newSlot(t, m)
	for _, slot := range []*Slot{s, neighbour} {
		if err := inNamespace(enterNamed(slot.Namespace()), noRules); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := greeting(s.Namespace(), publicAddr+":80"); err != nil {
		t.Errorf("outbound: %v", err)
	}
	forbidden := []string{hostAddr + ":8080", s.rec.hostEnd() + ":8080", neighbour.rec.slotEnd() + ":80", publicAddr + ":25", publicAddr + ":53"}
	for _, a := range forbiddenAddrs {
		forbidden = append(forbidden, a+":80")
	}
	for _, a := range forbidden {
		if _, _, err := greeting(s.Namespace(), a); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: %v, want a refusal", a, err)
		}
	}
}

func TestAProcessInTheSlotHasNoNetwork(t *testing.T) {
	m := newManager(t)
	s := newSlot(t, m)
	for _, a := range []string{publicAddr + ":9000", resolverAddr + ":53", s.rec.hostEnd() + ":9000"} {
		if err := ask(s.Namespace(), a); !errors.Is(err, unix.EPERM) {
			t.Errorf("UDP %s: %v, want no permission", a, err)
		}
	}
	if err := knock(s.Namespace(), publicAddr+":80"); err == nil {
		t.Error("a TCP connection left the slot")
	}
}

func TestNothingInboundReachesAGuest(t *testing.T) {
	// On a host that is a router anyway, where no guard of the uplink helps.
	if err := setOption("ipv4/ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := setOption("ipv4/ip_forward", "0"); err != nil {
			t.Error(err)
		}
	})
	m := newManager(t)
	s := newSlot(t, m)
	g := newGuest(t, s)
	accepted := g.listen(8080)
	if _, _, err := greeting(g.path, publicAddr+":80"); err != nil {
		t.Fatal(err) // the guest is up
	}
	// Even who knows a way to the guest's addresses gets no further.
	routeVia(t, "", GuestAddr, s.rec.slotEnd())
	routeVia(t, internetNS, GuestAddr, hostAddr)
	routeVia(t, internetNS, s.rec.slotEnd(), hostAddr)

	try := func(t *testing.T, from ...string) {
		var knocks sync.WaitGroup
		for _, where := range from {
			for _, a := range []string{GuestAddr, s.rec.slotEnd()} {
				knocks.Go(func() {
					if err := knock(where, a+":8080"); err == nil {
						t.Errorf("from %q: %s answered", where, a)
					}
				})
			}
		}
		knocks.Wait()
		if n := accepted.Load(); n != 0 {
			t.Errorf("%d connections reached the guest", n)
		}
	}
	t.Run("all rules", func(t *testing.T) { try(t, "", internetNS, s.Namespace()) })
	t.Run("the slot's alone", func(t *testing.T) {
		if err := noRules(); err != nil {
			t.Fatal(err)
		}
		try(t, "", internetNS, s.Namespace())
	})
	t.Run("the host's alone", func(t *testing.T) {
		newSlot(t, m) // brings them back
		if err := inNamespace(enterNamed(s.Namespace()), noRules); err != nil {
			t.Fatal(err)
		}
		try(t, internetNS)
	})
	t.Run("none", func(t *testing.T) { // or else the above proves nothing
		if err := noRules(); err != nil {
			t.Fatal(err)
		}
		if err := knock(internetNS, GuestAddr+":8080"); err != nil {
			t.Error(err)
		}
	})
}

// noRules deletes our rules in the calling thread's namespace.
func noRules() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	discard(c)
	return c.Flush()
}

// knock tries a connection that is expected to be dropped in silence.
func knock(path, addr string) error {
	try := func() error {
		c, err := net.DialTimeout("tcp4", addr, 300*time.Millisecond)
		if err == nil {
			c.Close()
		}
		return err
	}
	if path == "" {
		return try()
	}
	return inNamespace(enterNamed(path), try)
}

func routeVia(t *testing.T, path, dst, gateway string) {
	t.Helper()
	change := func(f func(*netlink.Handle, *netlink.Route) error) error {
		links, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer links.Close()
		return f(links, &netlink.Route{Dst: &net.IPNet{IP: net.ParseIP(dst).To4(), Mask: net.CIDRMask(32, 32)}, Gw: net.ParseIP(gateway)})
	}
	in := func(f func() error) error {
		if path == "" {
			return f()
		}
		return inNamespace(enterNamed(path), f)
	}
	if err := in(func() error { return change((*netlink.Handle).RouteAdd) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The kernel removes a route by itself when its slot goes first.
		if err := in(func() error { return change((*netlink.Handle).RouteDel) }); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Error(err)
		}
	})
}

func TestForgedSourcesVanish(t *testing.T) {
	m := newManager(t)
	g := newGuest(t, newSlot(t, m))
	send := func(text, source string) {
		t.Helper()
		err := inNamespace(enterNamed(g.path), func() error {
			d := net.Dialer{}
			if source != "" {
				d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(source)}
			}
			c, err := d.DialContext(context.Background(), "udp4", publicAddr+":9000")
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte(text))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	setMAC := func(mac string) {
		t.Helper()
		err := inNamespace(enterNamed(g.path), func() error {
			links, err := netlink.NewHandle()
			if err != nil {
				return err
			}
			defer links.Close()
			link, err := links.LinkByName("eth0")
			if err != nil {
				return err
			}
			hw, err := net.ParseMAC(mac)
			if err != nil {
				return err
			}
			if err := links.LinkSetHardwareAddr(link, hw); err != nil {
				return err
			}
			// The change lost the neighbours; asking for them anew would race with the test.
			gateway, err := net.ParseMAC(GatewayMAC)
			if err != nil {
				return err
			}
			return links.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, Family: netlink.FAMILY_V4,
				State: netlink.NUD_PERMANENT, IP: net.ParseIP(GatewayAddr), HardwareAddr: gateway})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := ask(g.path, publicAddr+":9000"); err != nil {
		t.Fatal(err)
	}
	if err := inNamespace(enterNamed(g.path), func() error {
		links, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer links.Close()
		return addAddr(links, "lo", "203.0.113.66/32")
	}); err != nil {
		t.Fatal(err)
	}
	send("forged address", "203.0.113.66")
	setMAC("02:00:0a:00:00:66")
	send("forged MAC", "")
	setMAC(GuestMAC)
	// Frames keep their order, so what came before this one has arrived or never will.
	if err := askText(g.path, publicAddr+":9000", "honest"); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"forged address", "forged MAC"} {
		if _, ok := heard.Load(text); ok {
			t.Errorf("a datagram with a %s got out", text)
		}
	}
	if _, ok := heard.Load("honest"); !ok {
		t.Error("the internet heard nothing at all")
	}
}

func TestEgressBytes(t *testing.T) {
	m := newManager(t)
	s := newSlot(t, m)
	g := newGuest(t, s)
	before, err := s.EgressBytes()
	if err != nil {
		t.Fatal(err)
	}
	c, err := dialIn(g.path, "tcp4", publicAddr+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	const sent = 100_000
	go c.Write(make([]byte, sent))
	if _, err := io.CopyN(io.Discard, c, sent); err != nil {
		t.Fatal(err)
	}
	after, err := s.EgressBytes()
	if err != nil {
		t.Fatal(err)
	}
	if n := after - before; n < sent || n > 2*sent {
		t.Errorf("%d bytes counted for a transfer of %d", n, sent)
	}
}
