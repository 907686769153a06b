package eqvps

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// NetworkMode is what a sandbox may reach.
type NetworkMode string

// The modes. What no sandbox may reach (private ranges, its host, other
// sandboxes, mail) stays out of reach in all of them.
const (
	// NetworkOpen is everything outbound but what Deny lists.
	NetworkOpen NetworkMode = "open"
	// NetworkNone is nothing at all, names included.
	NetworkNone NetworkMode = "none"
	// NetworkRestricted is only what Allow lists. Names still resolve, through the
	// gateway.
	NetworkRestricted NetworkMode = "restricted"
)

// MaxNetworkRules bounds the list of a policy.
const MaxNetworkRules = 64

// NetworkPolicy is what a sandbox may reach. The zero value is open.
type NetworkPolicy struct {
	Mode  NetworkMode   `json:"mode"`
	Allow []NetworkRule `json:"allow,omitempty"` // of a restricted one
	Deny  []NetworkRule `json:"deny,omitempty"`  // of an open one
}

// NetworkRule is a set of destinations.
type NetworkRule struct {
	CIDR     netip.Prefix `json:"cidr"`               // IPv4
	Protocol string       `json:"protocol,omitempty"` // "tcp", "udp" or "": any
	// Ports from the first to the last; both 0: any. Only with a protocol.
	First uint16 `json:"first,omitempty"`
	Last  uint16 `json:"last,omitempty"`
}

// Open reports whether the policy adds nothing to what holds for every sandbox.
func (p NetworkPolicy) Open() bool {
	return (p.Mode == "" || p.Mode == NetworkOpen) && len(p.Deny) == 0
}

// Validate checks the policy and fills in the default mode.
func (p *NetworkPolicy) Validate() error {
	list, other := p.Deny, p.Allow
	switch p.Mode {
	case "":
		p.Mode = NetworkOpen
	case NetworkOpen:
	case NetworkNone:
		other = append(p.Deny[:len(p.Deny):len(p.Deny)], p.Allow...)
		list = nil
	case NetworkRestricted:
		list, other = p.Allow, p.Deny
	default:
		return Errorf(CodeInvalidValue, "There is no network mode %.40q; use open, none or restricted.", string(p.Mode))
	}
	if len(other) > 0 {
		return Errorf(CodeInvalidValue, "Network mode %s takes no such list: deny goes with open, allow with restricted.", p.Mode)
	}
	if len(list) > MaxNetworkRules {
		return Errorf(CodeInvalidValue, "The network policy has %d rules; at most %d are allowed.", len(list), MaxNetworkRules)
	}
	return nil
}

// ParseNetworkRule reads a rule as callers write it: a range of addresses such as
// 192.0.2.0/24 or one address, ports such as "443" or "8000-8100" ("": any), and
// a protocol: tcp (the default where there are ports), udp or any.
func ParseNetworkRule(cidr, ports, protocol string) (NetworkRule, error) {
	var r NetworkRule
	prefix, err := netip.ParsePrefix(cidr)
	if addr, aerr := netip.ParseAddr(cidr); aerr == nil {
		prefix, err = addr.Prefix(addr.BitLen())
	}
	switch {
	case err != nil && strings.ContainsAny(cidr, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") && !strings.Contains(cidr, ":"):
		return r, Errorf(CodeInvalidValue, "The network rule %.80q names a domain; rules by name are not offered yet, use addresses such as 192.0.2.0/24.", cidr)
	case err != nil:
		return r, Errorf(CodeInvalidValue, "The network rule %.80q is no range of addresses; write it as 192.0.2.0/24.", cidr)
	case !prefix.Addr().Is4():
		return r, Errorf(CodeInvalidValue, "The network rule %.80q is not IPv4; sandboxes have no IPv6.", cidr)
	case prefix != prefix.Masked():
		return r, Errorf(CodeInvalidValue, "The network rule %.80q has bits beyond its mask; write %s.", cidr, prefix.Masked())
	}
	r.CIDR = prefix
	switch protocol {
	case "tcp", "udp":
		r.Protocol = protocol
	case "", "any":
		if ports != "" {
			r.Protocol = "tcp"
		}
		if ports != "" && protocol == "any" {
			return r, Errorf(CodeInvalidValue, "The network rule %s has ports, so its protocol is tcp or udp; write two rules for both.", cidr)
		}
	default:
		return r, Errorf(CodeInvalidValue, "The network rule %s has the protocol %.40q; use tcp, udp or any.", cidr, protocol)
	}
	if ports == "" {
		return r, nil
	}
	first, last, ranged := strings.Cut(ports, "-")
	if !ranged {
		last = first
	}
	a, aerr := strconv.ParseUint(first, 10, 16)
	b, berr := strconv.ParseUint(last, 10, 16)
	if aerr != nil || berr != nil || a == 0 || b < a {
		return r, Errorf(CodeInvalidValue, "The network rule %s has the ports %.40q; write 443 or 8000-8100, from 1 to 65535.", cidr, ports)
	}
	r.First, r.Last = uint16(a), uint16(b)
	return r, nil
}

// Ports are the ports as callers write them.
func (r NetworkRule) Ports() string {
	switch {
	case r.First == 0:
		return ""
	case r.First == r.Last:
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}
