package control

import (
	"context"
	"errors"
	"time"

	"github.com/eqvps/eqvps"
)

// endTimeout bounds the freeing of one sandbox's machine, which goes on also
// when the caller who asked for it has gone.
const endTimeout = 30 * time.Second

// errChanged leaves a record as it is: somebody else has moved it on.
var errChanged = errors.New("the record has moved on")

// Create starts a sandbox and returns when it can be used. If the caller goes
// away before that, the sandbox is undone and costs nothing.
func (s *Service) Create(ctx context.Context, c eqvps.CreateSandbox) (*eqvps.Sandbox, error) {
	p, err := eqvps.PrincipalFrom(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	tariff, err := s.tariffs.Find(c.Tariff)
	if err != nil {
		return nil, err
	}
	if err := s.addSecrets(ctx, p, &c); err != nil {
		return nil, err
	}
	sb := eqvps.NewSandbox(c, p, tariff, s.now())
	// A caller who leaves now must not leave it open whether there is a record.
	if err := s.store.CreateSandbox(context.WithoutCancel(ctx), sb); err != nil {
		return nil, err
	}
	m, err := s.host.Start(ctx, eqvps.StartMachine{ID: sb.ID, Tariff: tariff, Image: c.Image, Env: c.Env})
	if err == nil {
		var running *eqvps.Sandbox
		if running, err = s.started(ctx, sb.ID, m); err == nil {
			return running, nil
		}
	}
	s.log.Warn("sandbox did not start", "sandbox", sb.ID, "err", err)
	if e := s.end(ctx, sb.ID, eqvps.ReasonError); e != nil {
		s.log.Error("cannot undo a sandbox that did not start; will try again", "sandbox", sb.ID, "err", e)
	}
	return nil, err
}

// started records that a sandbox can be used and begins to watch it.
func (s *Service) started(ctx context.Context, id string, m eqvps.Machine) (*eqvps.Sandbox, error) {
	now := s.now()
	sb, err := s.store.UpdateSandbox(context.WithoutCancel(ctx), id, func(sb *eqvps.Sandbox) error {
		if sb.State != eqvps.StateStarting {
			return errChanged // deleted while it started
		}
		sb.State, sb.StartedAt, sb.LastActive, sb.Image = eqvps.StateRunning, now, now, m.Image()
		return nil
	})
	if err != nil {
		m.Close()
		if errors.Is(err, errChanged) {
			err = eqvps.Errorf(eqvps.CodeSandboxEnded, "The sandbox was deleted while it started.")
		}
		return nil, err
	}
	s.watch(newLive(sb, m, now))
	return sb, nil
}

// watch puts a sandbox among the living and ends it when its machine dies.
func (s *Service) watch(l *live) {
	s.mu.Lock()
	s.live[l.id] = l
	s.mu.Unlock()
	s.background(func(ctx context.Context) {
		select {
		case <-ctx.Done():
			return
		case <-l.machine.Done():
		}
		if s.lookup(l.id) != l {
			return // it is being ended already
		}
		s.log.Warn("machine died", "sandbox", l.id)
		if err := s.end(ctx, l.id, eqvps.ReasonError); err != nil {
			s.log.Error("cannot free a dead machine; will try again", "sandbox", l.id, "err", err)
		}
	})
}

// Delete ends a sandbox of the caller.
func (s *Service) Delete(ctx context.Context, id string) (*eqvps.Sandbox, error) {
	sb, err := s.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if !sb.Ended() {
		if err := s.end(ctx, id, eqvps.ReasonDeleted); err != nil {
			return nil, err
		}
	}
	return s.Get(ctx, id)
}

// ending is the end of a sandbox that the store does not know of yet.
type ending struct {
	reason eqvps.Reason
	at     time.Time
}

// end ends a sandbox for a reason: first the record says so (from here on it
// is not billed), then the machine goes, then the record is closed. The first
// reason stays. It is idempotent, and goes on when ctx is cancelled.
//
// A store that cannot take the end does not keep the machine alive: what fills
// the disk may be the machine's own. The end is remembered, and is recorded as
// soon as the store takes it.
func (s *Service) end(ctx context.Context, id string, reason eqvps.Reason) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	unlock, err := s.lockEnd(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()

	s.mu.Lock()
	l := s.live[id]
	delete(s.live, id)
	e, ok := s.unrecorded[id]
	if !ok {
		e = ending{reason, s.now()}
		s.unrecorded[id] = e
	}
	s.mu.Unlock()

	err = s.recordEnd(ctx, id, e, l)
	if errors.Is(err, errChanged) {
		// Somebody else ended it. If its machine was still starting then, it
		// may have come up since.
		return s.host.Destroy(ctx, id)
	}
	if l != nil {
		l.machine.Close()
	}
	if derr := s.host.Destroy(ctx, id); derr != nil {
		return errors.Join(err, derr)
	}
	if err != nil {
		s.log.Warn("a sandbox ended that the store could not take the end of", "sandbox", id, "err", err)
		if err = s.recordEnd(ctx, id, e, nil); err != nil && !errors.Is(err, errChanged) {
			return err
		}
	}
	_, err = s.store.UpdateSandbox(ctx, id, func(sb *eqvps.Sandbox) error {
		sb.State = eqvps.StateDeleted
		return nil
	})
	return err
}

// lockEnd waits until nobody else is ending the sandbox: of two who free one
// machine at once, the later would find it half gone and fail.
func (s *Service) lockEnd(ctx context.Context, id string) (unlock func(), err error) {
	for {
		s.mu.Lock()
		done, busy := s.ending[id]
		if !busy {
			done = make(chan struct{})
			s.ending[id] = done
		}
		s.mu.Unlock()
		if !busy {
			return func() {
				s.mu.Lock()
				delete(s.ending, id)
				s.mu.Unlock()
				close(done)
			}, nil
		}
		select {
		case <-done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// recordEnd has the record say that and why the sandbox ends. errChanged: it
// has ended before. l is nil for one whose machine is not known to live.
func (s *Service) recordEnd(ctx context.Context, id string, e ending, l *live) error {
	_, err := s.store.UpdateSandbox(ctx, id, func(sb *eqvps.Sandbox) error {
		if sb.Ended() {
			return errChanged
		}
		if sb.State == eqvps.StateDeleting {
			return nil
		}
		e.apply(sb)
		if l != nil {
			sb.LastActive = l.lastActive()
			recordUsage(sb, l.machine)
		}
		return nil
	})
	if err == nil || errors.Is(err, errChanged) {
		s.mu.Lock()
		delete(s.unrecorded, id)
		s.mu.Unlock()
	}
	return err
}

func (e ending) apply(sb *eqvps.Sandbox) {
	sb.State, sb.Reason, sb.EndedAt = eqvps.StateDeleting, e.reason, e.at
	if e.reason == eqvps.ReasonHostLost {
		// When it went is not known; time that nobody can account for is not
		// charged.
		sb.EndedAt = sb.LastActive
	}
}

// recordUsage writes the machine's last figures into the record. A dead
// machine may have none left.
func recordUsage(sb *eqvps.Sandbox, m eqvps.Machine) {
	if cpu, err := m.CPUTime(); err == nil {
		sb.CPUTime = cpu
	}
	if n, err := m.EgressBytes(); err == nil {
		sb.EgressBytes = n
	}
}
