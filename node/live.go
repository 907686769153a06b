package node

import (
	"context"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest"
)

// track remembers a machine that a caller gets: its channel takes one client,
// so whoever else needs it has to go through the same object.
func (n *Node) track(id string, mc *machine) *machine {
	n.mu.Lock()
	last := n.live[id]
	mc.id = id
	n.live[id] = mc
	n.mu.Unlock()
	if last != nil {
		last.Close()
	}
	return mc
}

func (n *Node) untrack(mc *machine) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.live[mc.id] == mc {
		delete(n.live, mc.id)
	}
}

// tracked returns the machine of an id that a caller holds, or nil.
func (n *Node) tracked(id string) *machine {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.live[id]
}

// hold takes the guest's session away from callers: theirs is told to end, and
// there is no other until release.
func (m *machine) hold(ctx context.Context) (*guest.Client, error) {
	c, err := m.connect(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held, m.client = true, nil
	return c, nil
}

// release gives callers a session again.
func (m *machine) release(c *guest.Client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held, m.client = false, c
}

var errHeld = eqvps.Errorf(eqvps.CodePaused, "The sandbox is being paused.")
