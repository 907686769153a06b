package wire

import "github.com/eqvps/eqvps"

// Network is what a sandbox may reach, besides what no sandbox may.
type Network struct {
	Mode  string        `json:"mode,omitempty" enum:"open,none,restricted" doc:"open (the default): everything outbound but what deny lists. none: nothing, names included. restricted: only what allow lists; names still resolve."`
	Allow []NetworkRule `json:"allow,omitempty" nullable:"false" doc:"With mode restricted: what it may reach, at most 64 rules."`
	Deny  []NetworkRule `json:"deny,omitempty" nullable:"false" doc:"With mode open: what it may not reach, at most 64 rules."`
}

// NetworkRule is a set of destinations.
type NetworkRule struct {
	CIDR     string `json:"cidr" doc:"IPv4 addresses: a range or one." example:"192.0.2.0/24"`
	Ports    string `json:"ports,omitempty" doc:"A port or a range of them; left out: any." example:"8000-8100"`
	Protocol string `json:"protocol,omitempty" doc:"tcp (the default where there are ports), udp or any."`
}

// Domain reads the policy.
func (n *Network) Domain() (p eqvps.NetworkPolicy, err error) {
	if n == nil {
		return p, nil
	}
	p.Mode = eqvps.NetworkMode(n.Mode)
	if p.Allow, err = networkRules(n.Allow); err == nil {
		p.Deny, err = networkRules(n.Deny)
	}
	if err == nil {
		err = p.Validate()
	}
	return p, err
}

func networkRules(list []NetworkRule) (out []eqvps.NetworkRule, err error) {
	for _, r := range list {
		rule, err := eqvps.ParseNetworkRule(r.CIDR, r.Ports, r.Protocol)
		if err != nil {
			return nil, err
		}
		if out = append(out, rule); len(out) > eqvps.MaxNetworkRules {
			break // Validate says that they are too many
		}
	}
	return out, nil
}

// NewNetwork renders a policy.
func NewNetwork(p eqvps.NetworkPolicy) Network {
	out := Network{Mode: string(p.Mode)}
	if out.Mode == "" {
		out.Mode = string(eqvps.NetworkOpen)
	}
	for _, r := range p.Allow {
		out.Allow = append(out.Allow, newNetworkRule(r))
	}
	for _, r := range p.Deny {
		out.Deny = append(out.Deny, newNetworkRule(r))
	}
	return out
}

func newNetworkRule(r eqvps.NetworkRule) NetworkRule {
	out := NetworkRule{CIDR: r.CIDR.String(), Ports: r.Ports(), Protocol: r.Protocol}
	if out.Protocol == "" {
		out.Protocol = "any"
	}
	return out
}
