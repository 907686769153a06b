package network

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// A table is a piece of policy as data. It can be printed in nft(8)'s
// language and written to the kernel, and both mean the same.
type table struct {
	resolvers []netip.Addr // members of the set @resolvers; nil: no such set
	chains    []chain
}

type chain struct {
	name  string
	hook  *hook // nil: reached only by jump
	rules []rule
}

type hook struct {
	kind     nftables.ChainType
	point    *nftables.ChainHook
	name     string // of the point, in nft's language
	priority nftables.ChainPriority
	deny     bool // what no rule decides is dropped
}

type rule struct {
	match []part
	do    part
	why   string
}

// A part is one condition or verdict: its nft text and its expressions.
type part struct {
	text  string
	exprs []expr.Any
}

const tableName = "eqvps"

// text prints the table as nft(8) reads it.
func (t table) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", tableName)
	if t.resolvers != nil {
		b.WriteString("\tset resolvers {\n\t\ttype ipv4_addr\n")
		var s []string
		for _, r := range t.resolvers {
			s = append(s, r.String())
		}
		if len(s) > 0 {
			fmt.Fprintf(&b, "\t\telements = { %s }\n", strings.Join(s, ", "))
		}
		b.WriteString("\t}\n")
	}
	for _, c := range t.chains {
		fmt.Fprintf(&b, "\tchain %s {\n", c.name)
		if h := c.hook; h != nil {
			policy := "accept"
			if h.deny {
				policy = "drop"
			}
			fmt.Fprintf(&b, "\t\ttype %s hook %s priority %d; policy %s;\n", h.kind, h.name, h.priority, policy)
		}
		for _, r := range c.rules {
			b.WriteString("\t\t")
			for _, m := range r.match {
				b.WriteString(m.text + " ")
			}
			b.WriteString(r.do.text)
			if r.why != "" {
				fmt.Fprintf(&b, " comment %q", r.why)
			}
			b.WriteByte('\n')
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// ourTable is the name under which rules lie, on the host and in each slot.
func ourTable() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: tableName}
}

// create writes the table in one transaction, in the network namespace of the
// calling thread, which has none yet.
func (t table) create() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	return t.write(c)
}

// replace is create in place of any earlier table, with no moment without
// rules. It is four times as slow: the kernel waits until no packet is
// in the old rules.
func (t table) replace() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	discard(c)
	return t.write(c)
}

// discard deletes our table, if there is one, with the next flush.
func discard(c *nftables.Conn) {
	c.AddTable(ourTable()) // so that the deletion finds one
	c.DelTable(ourTable())
}

func (t table) write(c *nftables.Conn) error {
	tab := ourTable()
	c.AddTable(tab)
	if t.resolvers != nil {
		var elems []nftables.SetElement
		for _, r := range t.resolvers {
			elems = append(elems, nftables.SetElement{Key: r.AsSlice()})
		}
		if err := c.AddSet(&nftables.Set{Table: tab, Name: resolverSet, KeyType: nftables.TypeIPAddr}, elems); err != nil {
			return err
		}
	}
	for _, ch := range t.chains {
		nc := &nftables.Chain{Table: tab, Name: ch.name}
		if h := ch.hook; h != nil {
			policy := nftables.ChainPolicyAccept
			if h.deny {
				policy = nftables.ChainPolicyDrop
			}
			nc.Type, nc.Hooknum, nc.Priority, nc.Policy = h.kind, h.point, &h.priority, &policy
		}
		c.AddChain(nc)
	}
	for _, ch := range t.chains {
		for _, r := range ch.rules {
			nr := &nftables.Rule{Table: tab, Chain: &nftables.Chain{Table: tab, Name: ch.name}}
			for _, m := range r.match {
				nr.Exprs = append(nr.Exprs, m.exprs...)
			}
			nr.Exprs = append(nr.Exprs, r.do.exprs...)
			if r.why != "" {
				nr.UserData = userdata.AppendString(nil, userdata.TypeComment, r.why)
			}
			c.AddRule(nr)
		}
	}
	return c.Flush()
}

const resolverSet = "resolvers"

func load(key expr.MetaKey) expr.Any { return &expr.Meta{Key: key, Register: 1} }

func equal(data ...byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}
}

func differs(data ...byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: data}
}

// device matches the device a packet came in by or goes out by; a name
// ending in * matches by prefix.
func device(word string, key expr.MetaKey, name string) part {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	if prefix, ok := strings.CutSuffix(name, "*"); ok {
		data = []byte(prefix)
	}
	return part{fmt.Sprintf("%s %q", word, name), []expr.Any{load(key), equal(data...)}}
}

func from(name string) part { return device("iifname", expr.MetaKeyIIFNAME, name) }
func to(name string) part   { return device("oifname", expr.MetaKeyOIFNAME, name) }

var (
	ipv4Only = []expr.Any{load(expr.MetaKeyNFPROTO), equal(unix.NFPROTO_IPV4)}
	isTCP    = part{"meta l4proto tcp", []expr.Any{load(expr.MetaKeyL4PROTO), equal(unix.IPPROTO_TCP)}}
	isIPv6   = part{"meta nfproto ipv6", []expr.Any{load(expr.MetaKeyNFPROTO), equal(unix.NFPROTO_IPV6)}}
)

func ipField(offset uint32, tests ...expr.Any) []expr.Any {
	e := append([]expr.Any{}, ipv4Only...)
	e = append(e, &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4})
	return append(e, tests...)
}

const (
	ipSource      = 12
	ipDestination = 16
)

func sourceIsNot(a string) part {
	return part{"ip saddr != " + a, ipField(ipSource, differs(netip.MustParseAddr(a).AsSlice()...))}
}

func destination(a string) part {
	return part{"ip daddr " + a, ipField(ipDestination, equal(netip.MustParseAddr(a).AsSlice()...))}
}

func destinationIn(p netip.Prefix) part {
	mask := net.CIDRMask(p.Bits(), 32)
	return part{"ip daddr " + p.String(), ipField(ipDestination,
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		equal(p.Addr().AsSlice()...))}
}

var (
	toResolver = part{"ip daddr @" + resolverSet, ipField(ipDestination,
		&expr.Lookup{SourceRegister: 1, SetName: resolverSet})}
	// toHost matches every address of the machine the rule is in force on.
	toHost = part{"fib daddr type local", []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true}, equal(binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)...)}}
)

func sourceMACIsNot(mac string) part {
	hw, err := net.ParseMAC(mac)
	if err != nil {
		panic(err)
	}
	return part{"ether saddr != " + mac, []expr.Any{
		load(expr.MetaKeyIIFTYPE), equal(binaryutil.NativeEndian.PutUint16(unix.ARPHRD_ETHER)...),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 6}, differs(hw...)}}
}

func port(proto string, number uint16) part {
	p := byte(unix.IPPROTO_TCP)
	if proto == "udp" {
		p = unix.IPPROTO_UDP
	}
	return part{fmt.Sprintf("%s dport %d", proto, number), []expr.Any{
		load(expr.MetaKeyL4PROTO), equal(p),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		equal(binary.BigEndian.AppendUint16(nil, number)...)}}
}

func protocol(proto string) part {
	p := byte(unix.IPPROTO_TCP)
	if proto == "udp" {
		p = unix.IPPROTO_UDP
	}
	return part{"meta l4proto " + proto, []expr.Any{load(expr.MetaKeyL4PROTO), equal(p)}}
}

// ports matches a range of ports, both ends included.
func ports(proto string, first, last uint16) part {
	if first == last {
		return port(proto, first)
	}
	return part{fmt.Sprintf("%s dport %d-%d", proto, first, last), append(protocol(proto).exprs,
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: binary.BigEndian.AppendUint16(nil, first), ToData: binary.BigEndian.AppendUint16(nil, last)})}
}

func conntrack(text string, key expr.CtKey, mask uint32) part {
	return part{text, []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(mask), Xor: make([]byte, 4)},
		differs(0, 0, 0, 0)}}
}

var (
	isReply     = conntrack("ct state established,related", expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
	isNew       = conntrack("ct state new", expr.CtKeySTATE, expr.CtStateBitNEW)
	isInvalid   = conntrack("ct state invalid", expr.CtKeySTATE, expr.CtStateBitINVALID)
	isRedirect  = conntrack("ct status dnat", expr.CtKeySTATUS, 1<<5) // IPS_DST_NAT
	isPing      = part{"icmp type echo-request", append(append([]expr.Any{}, ipv4Only...), load(expr.MetaKeyL4PROTO), equal(unix.IPPROTO_ICMP), &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Len: 1}, equal(8))}
	isHandshake = part{"tcp flags syn / syn,rst", append(append([]expr.Any{}, isTCP.exprs...),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{0x06}, Xor: []byte{0}}, equal(0x02))}
)

func verdict(text string, kind expr.VerdictKind, chain string) part {
	return part{strings.TrimSpace(text + " " + chain), []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}}
}

var (
	accept         = verdict("accept", expr.VerdictAccept, "")
	drop           = verdict("drop", expr.VerdictDrop, "")
	reset          = part{"reject with tcp reset", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}}
	prohibit       = part{"reject with icmpx admin-prohibited", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}}}
	masquerade     = part{"masquerade", []expr.Any{&expr.Masq{}}}
	fitSegmentSize = part{"tcp option maxseg size set rt mtu", []expr.Any{
		&expr.Rt{Key: expr.RtTCPMSS, Register: 1},
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 2, Size: 2},
		&expr.Exthdr{SourceRegister: 1, Type: 2, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt}}}
)

func follow(chain string) part { return verdict("goto", expr.VerdictGoto, chain) }

func redirect(a netip.Addr) part {
	return part{"dnat ip to " + a.String(), []expr.Any{
		&expr.Immediate{Register: 1, Data: a.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1}}}
}
