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
	if s.isDraining() {
		return nil, drainingError()
	}
	sb := eqvps.NewSandbox(c, p, tariff, s.now())
	start := eqvps.StartMachine{ID: sb.ID, Tariff: tariff, Image: c.Image, Env: c.Env, Network: c.Network}
	if sb.Mode == eqvps.Persistent {
		start.Persistent, start.Key = true, newPauseKey()
	}
	if err := s.addRecord(context.WithoutCancel(ctx), sb, start); err != nil {
		return nil, err
	}
	m, err := s.host.Start(ctx, start)
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

// addRecord stores the record of a sandbox that is about to start. A caller who
// leaves now must not leave it open whether there is one.
func (s *Service) addRecord(ctx context.Context, sb *eqvps.Sandbox, start eqvps.StartMachine) (err error) {
	if start.Persistent {
		defer s.sealing()()
		if sb.Sealed, err = s.seal(sb.ID, vault{Env: start.Env, Key: start.Key}); err != nil {
			return err
		}
	}
	return s.store.CreateSandbox(ctx, sb)
}

// started records that a sandbox can be used and begins to watch it.
func (s *Service) started(ctx context.Context, id string, m eqvps.Machine) (*eqvps.Sandbox, error) {
	now := s.now()
	sb, err := s.store.UpdateSandbox(context.WithoutCancel(ctx), id, func(sb *eqvps.Sandbox) error {
		if sb.State != eqvps.StateStarting {
			return errChanged // deleted while it started
		}
		sb.Run(now)
		sb.LastActive, sb.Image = now, m.Image()
		sb.Note(now, eqvps.EventStarted, "", "")
		return nil
	})
	if err != nil {
		m.Close()
		if errors.Is(err, errChanged) {
			err = eqvps.Errorf(eqvps.CodeSandboxEnded, "The sandbox was deleted while it started.")
		}
		return nil, err
	}
	s.watch(s.newLive(sb, m, now))
	return sb, nil
}

// watch puts a sandbox among the living. When its machine dies, it ends, or
// comes back from its disk if it is persistent.
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
		reason := l.machine.Cause()
		s.log.Warn("machine died", "sandbox", l.id, "reason", reason)
		if l.mode == eqvps.Persistent {
			s.revive(ctx, l, reason)
			return
		}
		if err := s.end(ctx, l.id, reason); err != nil {
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
	return s.endAt(ctx, id, reason, s.now())
}

// endAt ends a sandbox as of a time: one that was lost is not charged for time
// that nobody can account for.
func (s *Service) endAt(ctx context.Context, id string, reason eqvps.Reason, at time.Time) error {
	ctx = context.WithoutCancel(ctx)
	unlock, err := s.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()

	s.mu.Lock()
	l := s.live[id]
	delete(s.live, id)
	e, ok := s.unrecorded[id]
	if !ok {
		e = ending{reason, at}
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

// lock waits until nobody else moves the sandbox from state to state: of two
// who free one machine at once, the later would find it half gone and fail.
func (s *Service) lock(ctx context.Context, id string) (unlock func(), err error) {
	for {
		s.mu.Lock()
		done, busy := s.locked[id]
		if !busy {
			done = make(chan struct{})
			s.locked[id] = done
		}
		s.mu.Unlock()
		if !busy {
			return func() {
				s.mu.Lock()
				delete(s.locked, id)
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

// settled waits until nobody moves the sandbox from state to state.
func (s *Service) settled(ctx context.Context, id string) error {
	unlock, err := s.lock(ctx, id)
	if err != nil {
		return err
	}
	unlock()
	return nil
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
		if l != nil {
			sb.LastActive = l.lastActive()
			l.recordUsage(sb)
		}
		e.apply(sb)
		sb.Note(sb.EndedAt, eqvps.EventEnded, sb.Reason, "")
		return nil
	})
	if err == nil || errors.Is(err, errChanged) {
		s.mu.Lock()
		delete(s.unrecorded, id)
		s.mu.Unlock()
	}
	return err
}

// apply ends the record as of when the sandbox ended.
func (e ending) apply(sb *eqvps.Sandbox) {
	sb.State, sb.Reason, sb.EndedAt = eqvps.StateDeleting, e.reason, e.at
	sb.PausedAt, sb.PauseReason, sb.Sealed = time.Time{}, "", nil
	sb.Halt(e.at)
}
