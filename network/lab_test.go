package network

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The lab's wiring. The internet answers on every address below, so a
// connection that fails was refused by policy and not for want of a server.
const (
	hostAddr     = "192.0.2.2"
	peerAddr     = "192.0.2.1" // the internet's end of the host's uplink
	publicAddr   = "198.51.100.10"
	resolverAddr = "10.255.255.53"
	internetNS   = "/run/internet"
	guestNS      = "/run/guest"
	labMTU       = 1400
)

var forbiddenAddrs = []string{
	"10.1.2.3", resolverAddr, "168.63.129.16", "192.0.0.192", "100.64.1.1", "169.254.169.254", "172.16.5.5", "172.31.255.1", "192.168.7.7", "240.0.0.9",
}

var internetPorts = []int{25, 53, 80, 443, 465, 587}

// buildInternet connects the test's host to a namespace that plays the internet.
func buildInternet() error {
	links, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer links.Close()
	lo, err := links.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := links.LinkSetUp(lo); err != nil {
		return err
	}
	if err := inNamespace(enterNew, func() error { return pin(internetNS) }); err != nil {
		return err
	}
	ns, err := os.Open(internetNS)
	if err != nil {
		return err
	}
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "wan0", labMTU
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = "wan0", netlink.NsFd(ns.Fd())
	veth.PeerMTU = 1500 // the internet knows nothing of the host's smaller MTU
	if err := links.LinkAdd(veth); err != nil {
		return err
	}
	if err := addAddr(links, "wan0", hostAddr+"/24"); err != nil {
		return err
	}
	if err := inNamespace(enterNamed(internetNS), serveInternet); err != nil {
		return err
	}
	return links.RouteAdd(&netlink.Route{Gw: net.ParseIP(peerAddr)})
}

func addAddr(links *netlink.Handle, device, cidr string) error {
	link, err := links.LinkByName(device)
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(cidr)
	if err != nil {
		return err
	}
	if err := links.AddrAdd(link, addr); err != nil {
		return err
	}
	return links.LinkSetUp(link)
}

// serveInternet runs on a thread in the internet's namespace; its sockets stay there.
func serveInternet() error {
	links, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer links.Close()
	if err := addAddr(links, "wan0", peerAddr+"/24"); err != nil {
		return err
	}
	for _, a := range append([]string{publicAddr}, forbiddenAddrs...) {
		if err := addAddr(links, "lo", a+"/32"); err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
	}
	for _, p := range internetPorts {
		l, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", p))
		if err != nil {
			return err
		}
		go serveTCP(l)
	}
	for _, p := range []int{53, 9000} {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{Port: p})
		if err != nil {
			return err
		}
		if err := ipv4PacketInfo(c); err != nil {
			return err
		}
		go serveUDP(c)
	}
	return nil
}

// serveTCP tells each client the addresses it came from and went to, and the
// largest segment that it may be sent; then it echoes.
func serveTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			fmt.Fprintf(c, "%s %s %d\n", c.RemoteAddr().(*net.TCPAddr).IP, c.LocalAddr().(*net.TCPAddr).IP, segmentSize(c.(*net.TCPConn)))
			io.Copy(c, c)
		}()
	}
}

func segmentSize(c *net.TCPConn) (size int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1
	}
	if raw.Control(func(fd uintptr) { size, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG) }) != nil || err != nil {
		return -1
	}
	return size
}

func ipv4PacketInfo(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var opt error
	err = raw.Control(func(fd uintptr) { opt = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1) })
	return errors.Join(err, opt)
}

// heard holds the text of every datagram that reached the internet.
var heard sync.Map

// serveUDP sends every datagram back from the address it was sent to, which
// takes the packet information: the socket has many addresses.
func serveUDP(c *net.UDPConn) {
	buf, oob := make([]byte, 2048), make([]byte, 128)
	for {
		n, oobn, _, from, err := c.ReadMsgUDP(buf, oob)
		if err != nil {
			return
		}
		info := make([]byte, unix.CmsgSpace(unix.SizeofInet4Pktinfo))
		copy(info, oob[:oobn])
		start := unix.CmsgLen(0)
		heard.Store(string(buf[:n]), true)
		copy(info[start+4:start+8], info[start+8:start+12]) // answer from the destination address
		binary.NativeEndian.PutUint32(info[start:], 0)
		c.WriteMsgUDP(buf[:n], info, from)
	}
}

// newManager returns a manager with the lab's resolver and a RunDir of its own.
func newManager(t *testing.T, change ...func(*Config)) *Manager {
	t.Helper()
	cfg := Config{Owner: t.Name(), RunDir: t.TempDir(), Resolvers: []netip.Addr{netip.MustParseAddr(resolverAddr)}}
	for _, f := range change {
		f(&cfg)
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func newSlot(t *testing.T, m *Manager) *Slot {
	t.Helper()
	s, err := m.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// A guest is a network namespace that plays the virtual machine: its device is a tap
// whose frames a pair of goroutines carries to and from the slot's, as a
// monitor does.
type guest struct {
	t    *testing.T
	path string
}

func newGuest(t *testing.T, s *Slot) *guest {
	t.Helper()
	g := &guest{t: t, path: fmt.Sprintf("%s-%d", guestNS, s.Index())}
	t.Cleanup(func() {
		if err := unpin(g.path); err != nil {
			t.Error(err)
		}
	})
	var inner, outer *os.File
	err := inNamespace(enterNew, func() (err error) {
		if err := pin(g.path); err != nil {
			return err
		}
		if inner, err = attach("eth0"); err != nil {
			return err
		}
		return setUpGuest()
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := inNamespace(enterNamed(s.Namespace()), func() (err error) {
		if outer, err = attach(s.Tap()); err != nil {
			return err
		}
		return waitRunning(s.Tap())
	}); err != nil {
		t.Fatal(err)
	}
	var pumps sync.WaitGroup
	pumps.Go(func() { pump(outer, inner) })
	pumps.Go(func() { pump(inner, outer) })
	t.Cleanup(func() { inner.Close(); outer.Close(); pumps.Wait() })
	return g
}

// attach opens a tap just as QEMU does.
func attach(name string) (*os.File, error) {
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// waitRunning waits until the kernel has noticed that the tap's other end is
// there. A monitor takes longer to start than that.
func waitRunning(name string) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		link, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		if link.Flags&net.FlagRunning != 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s never ran", name)
		}
	}
}

func pump(to, from *os.File) {
	buf := make([]byte, 1<<17)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		to.Write(buf[:n])
	}
}

// setUpGuest does what the guest agent does. The MTU stays at 1500: the
// worst case, a guest that was told nothing.
func setUpGuest() error {
	links, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer links.Close()
	link, err := links.LinkByName("eth0")
	if err != nil {
		return err
	}
	mac, err := net.ParseMAC(GuestMAC)
	if err != nil {
		return err
	}
	if err := links.LinkSetHardwareAddr(link, mac); err != nil {
		return err
	}
	if err := addAddr(links, "eth0", fmt.Sprintf("%s/%d", GuestAddr, PrefixLen)); err != nil {
		return err
	}
	return links.RouteAdd(&netlink.Route{Gw: net.ParseIP(GatewayAddr)})
}

// listen opens a TCP server in the guest and counts who gets through to it.
func (g *guest) listen(port int) *atomic.Int64 {
	g.t.Helper()
	var l net.Listener
	if err := inNamespace(enterNamed(g.path), func() (err error) {
		l, err = net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", port))
		return err
	}); err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { l.Close() })
	var accepted atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			c.Close()
		}
	}()
	return &accepted
}

// patience bounds what should take milliseconds, on a machine that may be busy.
const patience = 5 * time.Second

// dial connects from a namespace; an empty path is the host.
func dialIn(path, network, addr string) (c net.Conn, err error) {
	d := net.Dialer{Timeout: patience}
	if path == "" {
		return d.Dial(network, addr)
	}
	err = inNamespace(enterNamed(path), func() (err error) {
		c, err = d.Dial(network, addr)
		return err
	})
	return c, err
}

// greeting connects over TCP and returns the addresses that the server saw
// the client at and was reached at.
func greeting(path, addr string) (client, server string, err error) {
	c, err := dialIn(path, "tcp4", addr)
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return "", "", err
	}
	_, err = fmt.Sscan(line, &client, &server)
	return client, server, err
}

// ask sends a datagram and waits for it to come back.
func ask(path, addr string) error {
	return askText(path, addr, "anyone?")
}

func askText(path, addr, text string) error {
	c, err := dialIn(path, "udp4", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte(text)); err != nil {
		return err
	}
	buf := make([]byte, 64)
	_, err = c.Read(buf)
	return err
}

// timedOut tells a silent failure from a clear one.
func timedOut(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout() || errors.Is(err, unix.ETIMEDOUT)
}
