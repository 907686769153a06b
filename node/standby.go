package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest"
)

// Machines on standby are restored, have rehearsed a command and wait at their
// gate, like a template's: with no identity, no variables and nothing running.
// A start hands one over in the time that one message takes. What the rehearsal
// leaves behind is in the monitor alone: the translated code of what every
// first command runs, which under emulation is most of that command's time.
//
// One on standby costs about 50 MiB and half a percent of a processor.

// rehearsal is the command that a machine on standby has run once.
const rehearsal = "true"

// standbyShare is the processor share (in thousandths) of a machine that nobody
// has asked for yet: making it should slow little those that somebody has.
const standbyShare = 250

// standbyRetry is the wait after a machine could not be made.
const standbyRetry = 30 * time.Second

// standby keeps machines of one tariff on the default image, none until
// KeepReady.
type standby struct {
	mu       sync.Mutex
	machines []*machine
	key      string // of the template they are restored from
	wake     chan struct{}
	stop     context.CancelFunc
	stopped  chan struct{}
}

// KeepReady keeps count machines of a tariff on standby from now on, until the
// node is closed. It is called at most once.
func (n *Node) KeepReady(tariff eqvps.Tariff, count int) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &n.ready
	s.stop, s.stopped = cancel, make(chan struct{})
	go func() {
		defer close(s.stopped)
		for ctx.Err() == nil {
			var retry <-chan time.Time
			if err := s.fill(ctx, n, tariff, count); err != nil && ctx.Err() == nil {
				n.log.Error("cannot make a machine for standby", "err", err)
				retry = time.After(standbyRetry)
			}
			select {
			case <-ctx.Done():
			case <-s.wake:
			case <-retry:
			}
		}
	}()
}

// fill makes machines, one at a time, until there are enough or a sandbox is
// being started, which goes first. Those of a template that is out of date go.
func (s *standby) fill(ctx context.Context, n *Node, tariff eqvps.Tariff, count int) error {
	for ctx.Err() == nil {
		t, err := n.template(ctx, "", tariff)
		if err != nil {
			return err
		}
		// These are in no list any more: none may be left because another
		// resists, or because the node is being closed.
		if err := n.destroyAll(context.WithoutCancel(ctx), s.outdated(t.key.String())); err != nil {
			return err
		}
		if s.count() >= count || n.busy() {
			return nil // the end of the last start wakes us
		}
		mc, err := n.rehearse(ctx, t, tariff)
		if err != nil {
			return err
		}
		s.add(mc)
	}
	return ctx.Err()
}

// rehearse restores a machine, has it run one command, and sends it back to
// its gate.
func (n *Node) rehearse(ctx context.Context, t *template, tariff eqvps.Tariff) (_ *machine, err error) {
	id := make([]byte, 8)
	rand.Read(id) // never fails (crypto/rand, Go 1.24)
	name := "standby-" + hex.EncodeToString(id)
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Destroy(context.WithoutCancel(ctx), name))
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	idle := tariff
	idle.MilliCPU = standbyShare
	mc, err := n.restore(ctx, &record{Name: name, Image: t.image.ID}, t, idle)
	if err != nil {
		return nil, err
	}
	err = n.do("standby.rehearse", func() error {
		c, err := guest.Renew(ctx, mc.vm.DialGuest, guest.Identity{Hostname: "standby"})
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Exec(ctx, eqvps.ExecRequest{Command: rehearsal, Timeout: prepareTimeout}, func(eqvps.Stream, []byte) error { return nil })
		if err != nil {
			return err
		}
		return c.Park(ctx, mc.vm.DialGuest)
	})
	if err != nil {
		mc.Close()
		return nil, err
	}
	t.proved.Store(true)
	return mc, nil
}

// handOver gives a machine on standby to a sandbox. From the link on it is the
// sandbox's, whatever happens.
func (n *Node) handOver(ctx context.Context, mc *machine, m eqvps.StartMachine) error {
	err := n.do("handover.link", func() error { return os.Symlink(mc.record.Name, n.machineDir(m.ID)) })
	if err != nil {
		return errors.Join(err, n.Destroy(context.WithoutCancel(ctx), mc.record.Name))
	}
	mc.record.Claim = claimOf(m.Tariff)
	if err := n.do("handover.record", func() error { return mc.record.write(n.machineDir(mc.record.Name)) }); err != nil {
		return err
	}
	if err := n.do("handover.weight", func() error { return n.group(mc.record.Name).setWeight(m.Tariff.MilliCPU) }); err != nil {
		return err
	}
	return n.renew(ctx, "start.renew", mc, m)
}

// take returns a machine of the template, or nil when none is ready.
func (s *standby) take(t *template) *machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.key != t.key.String() || len(s.machines) == 0 {
		return nil
	}
	mc := s.machines[0]
	s.machines = s.machines[1:]
	return mc
}

// startsOver is told when no start is under way any more: then there is time
// to make up for the machines that were taken.
func (s *standby) startsOver() {
	select {
	case s.wake <- struct{}{}:
	default: // it has been woken already, or there is no standby
	}
}

func (s *standby) add(mc *machine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machines = append(s.machines, mc)
}

// Ready counts the machines on standby.
func (n *Node) Ready() int { return n.ready.count() }

func (s *standby) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.machines)
}

// outdated removes and returns the machines whose monitor has died, and all of
// them when the template is another one now.
func (s *standby) outdated(key string) []*machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	var gone, good []*machine
	for _, mc := range s.machines {
		dead := false
		select {
		case <-mc.vm.Done():
			dead = true
		default:
		}
		if dead || s.key != key {
			gone = append(gone, mc)
		} else {
			good = append(good, mc)
		}
	}
	s.key, s.machines = key, good
	return gone
}

// close ends all machines on standby. One that was handed over is not among them.
func (s *standby) close(ctx context.Context, n *Node) error {
	if s.stop == nil {
		return nil
	}
	s.stop()
	<-s.stopped
	s.mu.Lock()
	machines := s.machines
	s.machines = nil
	s.mu.Unlock()
	return n.destroyAll(ctx, machines)
}

func (n *Node) destroyAll(ctx context.Context, machines []*machine) error {
	var errs []error
	for _, mc := range machines {
		mc.Close()
		errs = append(errs, n.Destroy(ctx, mc.record.Name))
	}
	return errors.Join(errs...)
}
