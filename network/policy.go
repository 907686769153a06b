package network

import (
	"net/netip"

	"github.com/google/nftables"

	"github.com/eqvps/eqvps"
)

// blockedRanges are what no guest may reach. The documentation ranges are
// not among them: hosts do use them for real.
var blockedRanges = []struct {
	prefix netip.Prefix
	why    string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "this network"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},
	{netip.MustParsePrefix("100.64.0.0/10"), "carrier-grade NAT, and the slots"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("168.63.129.16/32"), "platform services of the Azure cloud"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local, and cloud metadata"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},
	{netip.MustParsePrefix("192.0.0.0/24"), "protocol assignments, and cloud metadata"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved, and broadcast"},
}

// blockedPorts are TCP ports no guest may reach anywhere.
var blockedPorts = []struct {
	port uint16
	why  string
}{
	{25, "SMTP"},
	{465, "SMTP submission over TLS"},
	{587, "SMTP submission"},
}

// The hooks, in the order a packet meets them. raw comes before address
// translation, so that no redirection of the host's own hides a local address.
var (
	atArrival  = hook{nftables.ChainTypeFilter, nftables.ChainHookPrerouting, "prerouting", -300, false}
	atRedirect = hook{nftables.ChainTypeNAT, nftables.ChainHookPrerouting, "prerouting", -100, false}
	atInput    = hook{nftables.ChainTypeFilter, nftables.ChainHookInput, "input", 0, false}
	atForward  = hook{nftables.ChainTypeFilter, nftables.ChainHookForward, "forward", 0, false}
	atOutput   = hook{nftables.ChainTypeFilter, nftables.ChainHookOutput, "output", 0, false}
	atLeaving  = hook{nftables.ChainTypeNAT, nftables.ChainHookPostrouting, "postrouting", 100, false}
)

func (h hook) open() *hook { return &h }

func (h hook) closed() *hook { h.deny = true; return &h }

// guestChain decides on a guest's connections. dns tells which ones go to the
// resolver, own what a sandbox's own policy adds to what holds for all.
func guestChain(dns part, own eqvps.NetworkPolicy) chain {
	c := chain{name: "guest"}
	if own.Mode == eqvps.NetworkNone {
		c.rules = []rule{{nil, follow("refuse"), "no network"}}
		return c
	}
	for _, proto := range []string{"udp", "tcp"} {
		c.rules = append(c.rules,
			rule{[]part{dns, port(proto, 53)}, accept, "DNS through the gateway"},
			rule{[]part{port(proto, 53)}, follow("refuse"), "DNS to any other server"})
	}
	for _, b := range blockedRanges {
		c.rules = append(c.rules, rule{[]part{destinationIn(b.prefix)}, follow("refuse"), b.why})
	}
	for _, b := range blockedPorts {
		c.rules = append(c.rules, rule{[]part{port("tcp", b.port)}, follow("refuse"), b.why})
	}
	for _, r := range own.Deny {
		c.rules = append(c.rules, rule{destinations(r), follow("refuse"), "denied to this sandbox"})
	}
	if own.Mode != eqvps.NetworkRestricted {
		c.rules = append(c.rules, rule{nil, accept, "everything else outbound"})
		return c
	}
	for _, r := range own.Allow {
		c.rules = append(c.rules, rule{destinations(r), accept, "allowed to this sandbox"})
	}
	c.rules = append(c.rules, rule{nil, follow("refuse"), "everything else"})
	return c
}

// destinations are the conditions of a sandbox's own rule.
func destinations(r eqvps.NetworkRule) []part {
	parts := []part{destinationIn(r.CIDR)}
	switch {
	case r.Protocol == "":
	case r.First == 0:
		parts = append(parts, protocol(r.Protocol))
	default:
		parts = append(parts, ports(r.Protocol, r.First, r.Last))
	}
	return parts
}

var refuseChain = chain{name: "refuse", rules: []rule{
	{[]part{isTCP}, reset, "fail at once"},
	{nil, prohibit, "fail at once"},
}}

// slotTable is the policy inside a slot. An invalid resolver means that
// guests have no DNS.
//
// All that a slot forwards from its guest belongs to connections that the guest
// has made. Where a sandbox has a policy of its own, every packet of them is held
// against it, so that a policy which is changed ends what it forbids.
func slotTable(resolver netip.Addr, own eqvps.NetworkPolicy) table {
	var dns []rule
	if resolver.IsValid() {
		for _, proto := range []string{"udp", "tcp"} {
			dns = append(dns, rule{[]part{from(TapName), destination(GatewayAddr), port(proto, 53)}, redirect(resolver), "the gateway is the resolver"})
		}
	}
	fit := rule{[]part{isHandshake}, fitSegmentSize, "whatever MTU the guest believes in"}
	known := rule{[]part{isReply}, accept, ""}
	lost := rule{[]part{isInvalid}, drop, "would leave untranslated"}
	out := rule{[]part{from(TapName), to(uplinkName)}, follow("guest"), ""}
	forward := []rule{fit, known, lost, out}
	if !own.Open() {
		forward = []rule{fit, lost, out, known}
	}
	return table{chains: []chain{
		{"arrival", atArrival.open(), []rule{
			{[]part{isIPv6}, drop, "guests have IPv4 only"},
			{[]part{from(TapName), sourceMACIsNot(GuestMAC)}, drop, "forged MAC"},
			{[]part{from(TapName), sourceIsNot(GuestAddr)}, drop, "forged address"},
		}},
		{"resolve", atRedirect.open(), dns},
		{"input", atInput.closed(), []rule{
			{[]part{from(TapName), isPing}, accept, "the gateway answers pings"},
			{[]part{from(TapName)}, follow("refuse"), "nothing else listens"},
		}},
		{"output", atOutput.closed(), []rule{
			{[]part{isReply}, accept, "refusals; a process in the slot has no network"},
		}},
		{"forward", atForward.closed(), forward},
		{"leaving", atLeaving.open(), []rule{
			{[]part{to(uplinkName)}, masquerade, ""},
		}},
		guestChain(isRedirect, own),
		refuseChain,
	}}
}

// hostParams is all that the host's policy depends on.
type hostParams struct {
	resolvers []netip.Addr // of all servers on the host, sorted
	opened    []string     // devices that forward only because slots exist, sorted
}

// hostTable is the policy on the host, the same for any number of slots.
func hostTable(p hostParams) table {
	slots := vethPrefix + "*"
	forward := []rule{
		{[]part{from(slots), to(slots)}, follow("refuse"), "slot to slot"},
		{[]part{from(slots), isReply}, accept, ""},
		{[]part{from(slots)}, follow("guest"), ""},
		{[]part{to(slots), isReply}, accept, ""},
		{[]part{to(slots)}, drop, "nothing inbound"},
	}
	for _, dev := range p.opened {
		forward = append(forward, rule{[]part{from(dev), isNew}, drop, "forwards for slots only"})
	}
	arrival := []rule{{[]part{from(slots), isIPv6}, drop, "guests have IPv4 only"}}
	var input []rule
	for _, proto := range []string{"udp", "tcp"} {
		dns := rule{[]part{from(slots), toResolver, port(proto, 53)}, accept, "the resolver may be the host"}
		arrival, input = append(arrival, dns), append(input, dns)
	}
	resolvers := p.resolvers
	if resolvers == nil {
		resolvers = []netip.Addr{}
	}
	return table{resolvers: resolvers, chains: []chain{
		{"arrival", atArrival.open(), append(arrival,
			rule{[]part{from(slots), toHost}, follow("refuse"), "any address of the host"})},
		{"input", atInput.open(), append(input,
			rule{[]part{from(slots)}, drop, "the host is closed to guests"})},
		{"forward", atForward.open(), forward},
		{"leaving", atLeaving.open(), []rule{
			{[]part{from(slots)}, masquerade, ""},
		}},
		guestChain(toResolver, eqvps.NetworkPolicy{}),
		refuseChain,
	}}
}

// Policy prints the rules of every slot and of the host in the language of
// nft(8), for people who want to check them. The resolver is an example.
func Policy() string {
	resolver := netip.MustParseAddr("192.0.2.53")
	return "# in each slot\n" + slotTable(resolver, eqvps.NetworkPolicy{}).text() +
		"# on the host\n" + hostTable(hostParams{resolvers: []netip.Addr{resolver}}).text()
}
