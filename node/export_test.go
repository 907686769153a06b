package node

// Owner is the name of the data folder in cgroups.
func (n *Node) Owner() string { return n.owner }

// HangUp closes all channels to guests, as the end of the process does.
func (n *Node) HangUp() {
	n.mu.Lock()
	var all []*machine
	for _, mc := range n.live {
		all = append(all, mc)
	}
	n.mu.Unlock()
	for _, mc := range all {
		mc.Close()
	}
}

// HostCPUs is how many processors this process may use.
func HostCPUs() int { return hostCPUs() }
