package network

import (
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const tunDevice = "/dev/net/tun"

// tapFlags are those with which QEMU and Firecracker attach: Ethernet frames
// with offload headers, one queue.
const tapFlags = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR

// makeTap creates the persistent tap in the calling thread's namespace. Root
// and the given user and group may attach to it.
func makeTap(uid, gid int) error {
	f, err := os.OpenFile(tunDevice, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fd := int(f.Fd())
	req, err := unix.NewIfreq(TapName)
	if err != nil {
		return err
	}
	req.SetUint16(tapFlags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return err
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, uid); err != nil {
		return err
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETGROUP, gid); err != nil {
		return err
	}
	return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
}

// setUpTap gives the tap its addresses. The guest's own MAC is entered by
// hand, so that no guest can claim to be anything else and the first reply
// to a restored guest waits for no ARP.
func setUpTap(links *netlink.Handle, mtu int) error {
	tap, err := links.LinkByName(TapName)
	if err != nil {
		return err
	}
	mac, err := net.ParseMAC(GatewayMAC)
	if err != nil {
		return err
	}
	if err := links.LinkSetHardwareAddr(tap, mac); err != nil {
		return err
	}
	if err := links.LinkSetMTU(tap, mtu); err != nil {
		return err
	}
	if err := links.AddrAdd(tap, &netlink.Addr{IPNet: ipNet(GatewayAddr)}); err != nil {
		return err
	}
	if err := links.LinkSetUp(tap); err != nil {
		return err
	}
	guest, err := net.ParseMAC(GuestMAC)
	if err != nil {
		return err
	}
	return links.NeighSet(&netlink.Neigh{LinkIndex: tap.Attrs().Index, Family: netlink.FAMILY_V4,
		State: netlink.NUD_PERMANENT, IP: net.ParseIP(GuestAddr), HardwareAddr: guest})
}

// ipNet is an address with the /30 it lies in.
func ipNet(a string) *net.IPNet {
	return &net.IPNet{IP: net.ParseIP(a).To4(), Mask: net.CIDRMask(PrefixLen, 32)}
}
