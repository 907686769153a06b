package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest"
	"github.com/eqvps/eqvps/network"
	"github.com/eqvps/eqvps/vmm"
)

// reconnectTimeout bounds finding a guest again whose channel broke.
const reconnectTimeout = 10 * time.Second

// machine is a running machine: its monitor and the way to its guest agent.
type machine struct {
	node   *Node
	id     string // of its sandbox, once a caller holds it
	record *record
	slot   *network.Slot
	vm     vmm.Machine
	burst  *burst // used by keepShares only

	mu     sync.Mutex
	client *guest.Client // nil: not connected yet
	held   bool          // being paused: there is no session for callers
}

// Adopt finds a machine that an earlier process started and makes sure that
// its guest answers.
func (n *Node) Adopt(ctx context.Context, id string) (eqvps.Machine, error) {
	mc, err := n.adopt(ctx, id)
	if err != nil {
		return nil, err
	}
	if mc.record.Base != nil {
		n.dropUsed(n.machineDir(id)) // of a resume that succeeded and died
	}
	return n.track(id, mc), nil
}

func (n *Node) adopt(ctx context.Context, id string) (*machine, error) {
	r, err := readRecord(n.machineDir(id))
	if err != nil {
		return nil, err
	}
	if isPaused(n.machineDir(id)) {
		return nil, fmt.Errorf("machine %s is paused: %w", id, vmm.ErrGone)
	}
	if r == nil || r.Handle == nil {
		return nil, fmt.Errorf("machine %s: %w", id, vmm.ErrGone)
	}
	slot, err := n.openSlot(r.Slot)
	if err != nil {
		return nil, err
	}
	vm, err := n.monitor.Adopt(ctx, *r.Handle)
	if err != nil {
		return nil, err
	}
	if mc := n.tracked(id); mc != nil {
		mc.Close() // its channel would keep another waiting
	}
	m := &machine{node: n, record: r, slot: slot, vm: vm}
	if err := m.Ping(ctx); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// connect returns the session with the guest, a new one if the last broke.
func (m *machine) connect(ctx context.Context) (*guest.Client, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held {
		return nil, errHeld
	}
	if m.client != nil {
		select {
		case <-m.client.Done():
			m.client.Close()
			m.client = nil
		default:
			return m.client, nil
		}
	}
	select {
	case <-m.vm.Done():
		return nil, eqvps.WrapError(eqvps.CodeUnreachable, vmm.ErrGone)
	default:
	}
	ctx, cancel := context.WithTimeout(ctx, reconnectTimeout)
	defer cancel()
	c, err := guest.Connect(ctx, m.vm.DialGuest)
	if err != nil {
		return nil, eqvps.WrapError(eqvps.CodeUnreachable, err)
	}
	// The host's clock may have been set while nobody told the guest.
	if err := c.SetClock(ctx, time.Now()); err != nil {
		c.Close()
		return nil, err
	}
	m.client = c
	return c, nil
}

// SetNetwork changes the rules of the machine's slot.
func (m *machine) SetNetwork(_ context.Context, p eqvps.NetworkPolicy) error {
	return m.slot.SetPolicy(p)
}

func (m *machine) Image() string                   { return m.record.Image }
func (m *machine) Done() <-chan struct{}           { return m.vm.Done() }
func (m *machine) CPUTime() (time.Duration, error) { return m.vm.CPUTime() }
func (m *machine) EgressBytes() (uint64, error)    { return m.slot.EgressBytes() }

// Cause tells why a machine whose Done is closed has died: for want of memory,
// its own or its host's for it, or for another reason.
func (m *machine) Cause() eqvps.Reason {
	if m.node.group(m.record.Name).oomKills() > 0 {
		return eqvps.ReasonOOM
	}
	return eqvps.ReasonError
}

func (m *machine) Close() error {
	m.node.untrack(m)
	m.mu.Lock()
	defer m.mu.Unlock()
	var err error
	if m.client != nil {
		err = m.client.Close()
		m.client = nil
	}
	return errors.Join(err, m.vm.Close())
}

func (m *machine) Ping(ctx context.Context) error {
	c, err := m.connect(ctx)
	if err != nil {
		return err
	}
	_, err = c.Ping(ctx)
	return err
}

// SetEnv is repeated once where the channel broke: twice is the same as once.
func (m *machine) SetEnv(ctx context.Context, ch eqvps.EnvChange) (err error) {
	for range 2 {
		var c *guest.Client
		if c, err = m.connect(ctx); err != nil {
			return err
		}
		err = c.SetEnv(ctx, ch)
		if ctx.Err() != nil || eqvps.ErrorCode(err) != eqvps.CodeUnreachable {
			break
		}
	}
	return err
}

func (m *machine) Exec(ctx context.Context, req eqvps.ExecRequest, out eqvps.Output) (eqvps.ExitStatus, error) {
	c, err := m.connect(ctx)
	if err != nil {
		return eqvps.ExitStatus{}, err
	}
	return c.Exec(ctx, req, out)
}

// StartTask is repeated once where the channel broke: the guest knows the task
// by its id and starts it once.
func (m *machine) StartTask(ctx context.Context, req eqvps.StartTask) (t *eqvps.Task, err error) {
	for range 2 {
		var c *guest.Client
		if c, err = m.connect(ctx); err != nil {
			return nil, err
		}
		t, err = c.StartTask(ctx, req)
		if ctx.Err() != nil || eqvps.ErrorCode(err) != eqvps.CodeUnreachable {
			break
		}
	}
	return t, err
}

func (m *machine) ReadTask(ctx context.Context, id string, r eqvps.ReadTask) (*eqvps.TaskOutput, error) {
	c, err := m.connect(ctx)
	if err != nil {
		return nil, err
	}
	return c.ReadTask(ctx, id, r)
}

func (m *machine) ListTasks(ctx context.Context) ([]*eqvps.Task, error) {
	c, err := m.connect(ctx)
	if err != nil {
		return nil, err
	}
	return c.ListTasks(ctx)
}

func (m *machine) KillTask(ctx context.Context, id string) (*eqvps.Task, error) {
	c, err := m.connect(ctx)
	if err != nil {
		return nil, err
	}
	return c.KillTask(ctx, id)
}

func (m *machine) TaskActivity(ctx context.Context) (eqvps.TaskActivity, error) {
	c, err := m.connect(ctx)
	if err != nil {
		return eqvps.TaskActivity{}, err
	}
	return c.TaskActivity(ctx)
}
