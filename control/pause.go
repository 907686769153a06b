package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/eqvps/eqvps"
)

// Bounds of a pause and of a return from one. Both go on when their caller has
// gone: half of either is of no use to anybody.
const (
	pauseTimeout  = 2 * time.Minute
	resumeTimeout = 3 * time.Minute
)

// rebootGap is how long a machine that came back from its disk has to live for
// another one to be made at once when it dies. One that dies sooner waits for
// the next use, so that nothing turns in circles.
const rebootGap = time.Minute

// drainingError is what a server says that is about to stop.
func drainingError() error {
	e := eqvps.Errorf(eqvps.CodeCapacity, "The server is about to stop.")
	e.RetryAfter = 30 * time.Second
	return e
}

func (s *Service) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// Pause puts a persistent sandbox of the caller away.
func (s *Service) Pause(ctx context.Context, id string) (*eqvps.Sandbox, error) {
	if err := s.wantPersistent(ctx, id); err != nil {
		return nil, err
	}
	return s.pause(ctx, id, eqvps.ReasonCall)
}

// Resume brings a persistent sandbox of the caller back.
func (s *Service) Resume(ctx context.Context, id string, fromDisk bool) (*eqvps.Sandbox, error) {
	if err := s.wantPersistent(ctx, id); err != nil {
		return nil, err
	}
	l, err := s.resume(ctx, id, fromDisk)
	if err != nil {
		return nil, err
	}
	l.activeAt(s.now())
	return s.Get(ctx, id)
}

func (s *Service) wantPersistent(ctx context.Context, id string) error {
	sb, err := s.Get(ctx, id)
	switch {
	case err != nil:
		return err
	case over(sb), sb.State == eqvps.StateStarting:
		return unusable(sb)
	case sb.Mode != eqvps.Persistent:
		return eqvps.Errorf(eqvps.CodeWrongMode, "An %s sandbox cannot be paused.", sb.Mode)
	}
	return nil
}

// pause puts a sandbox away for a reason. One that is paused stays so; if
// somebody asks for it, it no longer wakes by itself. Idle sandboxes that are
// used again meanwhile are left alone.
func (s *Service) pause(ctx context.Context, id string, reason eqvps.Reason) (*eqvps.Sandbox, error) {
	unlock, err := s.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pauseTimeout)
	defer cancel()

	l := s.lookup(id)
	if l == nil {
		return s.pauseAgain(ctx, id, reason)
	}
	at := s.now()
	if !l.shut(reason == eqvps.ReasonIdle, at) {
		return nil, nil
	}
	var kept vault
	_, err = s.store.UpdateSandbox(ctx, id, func(sb *eqvps.Sandbox) (err error) {
		if sb.State != eqvps.StateRunning {
			return unusable(sb)
		}
		if kept, err = s.open(id, sb.Sealed); err != nil {
			return err
		}
		// From here on it is not billed.
		sb.Halt(at)
		sb.State, sb.PauseReason, sb.LastActive = eqvps.StatePausing, reason, l.lastActive()
		l.recordUsage(sb)
		return nil
	})
	if err != nil {
		l.reopen()
		return nil, err
	}
	s.remove(l)
	if err := s.host.Pause(ctx, id, kept.Key); err != nil {
		return nil, s.notPaused(ctx, l, reason, err)
	}
	l.machine.Close()
	s.log.Info("sandbox paused", "sandbox", id, "reason", reason, "took", s.now().Sub(at))
	return s.store.UpdateSandbox(ctx, id, func(sb *eqvps.Sandbox) error {
		sb.State, sb.PausedAt = eqvps.StatePaused, at
		sb.Before = eqvps.MachineUsage{CPUTime: sb.CPUTime, EgressBytes: sb.EgressBytes}
		sb.Note(at, eqvps.EventPaused, reason, "")
		return nil
	})
}

// pauseAgain answers for a sandbox that does not run.
func (s *Service) pauseAgain(ctx context.Context, id string, reason eqvps.Reason) (*eqvps.Sandbox, error) {
	return s.store.UpdateSandbox(ctx, id, func(sb *eqvps.Sandbox) error {
		if sb.State != eqvps.StatePaused {
			return unusable(sb)
		}
		if reason == eqvps.ReasonCall {
			sb.PauseReason = reason
		}
		return nil
	})
}

// notPaused takes a sandbox back whose pause failed. Its machine runs on; if it
// has died, watching it tells.
func (s *Service) notPaused(ctx context.Context, l *live, reason eqvps.Reason, cause error) error {
	s.log.Error("a sandbox could not be paused", "sandbox", l.id, "err", cause)
	_, err := s.store.UpdateSandbox(ctx, l.id, func(sb *eqvps.Sandbox) error {
		now := s.now()
		sb.Run(now)
		sb.Note(now, eqvps.EventFailed, reason, "It could not be paused: "+eqvps.AsError(cause).Message)
		return nil
	})
	l.reopen()
	s.watch(l)
	return errors.Join(cause, err)
}

// remove takes a sandbox from among the living; its machine is let be.
func (s *Service) remove(l *live) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[l.id] == l {
		delete(s.live, l.id)
	}
}

// wake brings a sandbox back that somebody wants to use.
func (s *Service) wake(ctx context.Context, id string) (*live, error) {
	return s.resume(ctx, id, false)
}

// resume returns the live sandbox, bringing it back if it does not run.
// fromDisk starts it anew from its disk in any case.
func (s *Service) resume(ctx context.Context, id string, fromDisk bool) (*live, error) {
	unlock, err := s.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resumeTimeout)
	defer cancel()

	l := s.lookup(id)
	if l != nil && !fromDisk {
		return l, nil
	}
	if s.isDraining() {
		return nil, drainingError()
	}
	if l != nil {
		l.shut(false, s.now())
		s.remove(l)
		l.machine.Close()
	}
	now := s.now()
	sb, err := s.store.UpdateSandbox(ctx, id, func(sb *eqvps.Sandbox) error {
		switch sb.State {
		case eqvps.StateRunning, eqvps.StatePaused, eqvps.StatePausing, eqvps.StateResuming:
			halt(sb, l, now)
			sb.State = eqvps.StateResuming
			return nil
		}
		return unusable(sb)
	})
	if err != nil {
		return nil, err
	}
	return s.bring(ctx, sb, fromDisk)
}

// halt closes the record's open interval, if there is one, with the last
// figures of a machine that is gone or about to be.
func halt(sb *eqvps.Sandbox, l *live, at time.Time) {
	if l != nil {
		sb.LastActive = l.lastActive()
		l.recordUsage(sb)
	}
	sb.Before = eqvps.MachineUsage{CPUTime: sb.CPUTime, EgressBytes: sb.EgressBytes}
	sb.Halt(at)
}

// bring makes a machine for a sandbox that is resuming, from its paused memory
// or from its disk. If it cannot be made, the sandbox is paused. The caller
// holds its lock.
func (s *Service) bring(ctx context.Context, sb *eqvps.Sandbox, fromDisk bool) (*live, error) {
	began := s.now()
	m, fromDisk, err := s.machineFor(ctx, sb, fromDisk)
	now := s.now()
	if err != nil {
		s.log.Error("a sandbox could not be brought back", "sandbox", sb.ID, "from_disk", fromDisk, "err", err)
		_, uerr := s.store.UpdateSandbox(ctx, sb.ID, func(sb *eqvps.Sandbox) error {
			sb.State = eqvps.StatePaused
			if sb.PauseReason == "" {
				sb.PauseReason = eqvps.ReasonError
			}
			if sb.PausedAt.IsZero() {
				sb.PausedAt = now
			}
			sb.Note(now, eqvps.EventFailed, "", "It could not be brought back: "+eqvps.AsError(err).Message)
			return nil
		})
		return nil, errors.Join(err, uerr)
	}
	sb, err = s.store.UpdateSandbox(ctx, sb.ID, func(sb *eqvps.Sandbox) error {
		if sb.State != eqvps.StateResuming {
			return errChanged
		}
		why := sb.PauseReason
		sb.Run(now)
		sb.LastActive = now
		if fromDisk {
			sb.Note(now, eqvps.EventRebooted, why, "It was started anew from its disk: processes, variables of processes and what else was in memory are gone.")
		} else {
			sb.Note(now, eqvps.EventResumed, why, "")
		}
		return nil
	})
	if err != nil {
		m.Close()
		return nil, err
	}
	s.log.Info("sandbox brought back", "sandbox", sb.ID, "from_disk", fromDisk, "took", now.Sub(began))
	l := s.newLive(sb, m, now)
	l.rebooted = fromDisk
	s.watch(l)
	return l, nil
}

// machineFor makes the machine of a sandbox. rebooted tells that it comes from
// the disk: because that was asked for, or because there is no paused memory.
func (s *Service) machineFor(ctx context.Context, sb *eqvps.Sandbox, fromDisk bool) (m eqvps.Machine, rebooted bool, err error) {
	kept, err := s.open(sb.ID, sb.Sealed)
	if err != nil {
		return nil, false, err
	}
	tariff, err := s.tariffs.Find(sb.Tariff)
	if err != nil {
		return nil, false, err
	}
	start := eqvps.StartMachine{ID: sb.ID, Tariff: tariff, Image: sb.Image, Env: kept.Env, Network: sb.Network, Persistent: true, Key: kept.Key}
	if !fromDisk {
		// Also where nothing lies paused: a pause that was cut short may have
		// left the machine running.
		m, err = s.host.Resume(ctx, start)
		if err == nil || s.host.Paused(sb.ID) {
			return m, false, err
		}
		s.log.Warn("a sandbox's memory is lost; it is started from its disk", "sandbox", sb.ID, "err", err)
	}
	m, err = s.host.Reboot(ctx, start)
	return m, true, err
}

// revive brings a persistent sandbox back whose machine has died.
func (s *Service) revive(ctx context.Context, l *live, reason eqvps.Reason) {
	unlock, err := s.lock(ctx, l.id)
	if err != nil {
		return // the server stops; the next one finds it
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), resumeTimeout)
	defer cancel()
	if s.lookup(l.id) != l {
		return
	}
	s.remove(l)
	l.machine.Close()
	at := s.now()
	again := !l.rebooted || at.Sub(l.since) >= rebootGap
	sb, err := s.store.UpdateSandbox(ctx, l.id, func(sb *eqvps.Sandbox) error {
		if sb.State != eqvps.StateRunning {
			return errChanged
		}
		halt(sb, l, at)
		sb.PauseReason = reason
		if again {
			sb.State = eqvps.StateResuming
			return nil
		}
		sb.State, sb.PausedAt = eqvps.StatePaused, at
		sb.Note(at, eqvps.EventFailed, reason, fmt.Sprintf("Its machine died within %d seconds after it was started from disk; it is started again when it is used.", int(rebootGap.Seconds())))
		return nil
	})
	if err == nil && again {
		_, err = s.bring(ctx, sb, true)
	}
	if err != nil && !errors.Is(err, errChanged) {
		s.log.Error("a persistent sandbox whose machine died could not be brought back", "sandbox", l.id, "err", err)
	}
}

// Drain readies the server for a stop of its host: it takes no new sandboxes
// and puts persistent ones away. The next start brings them back.
func (s *Service) Drain(ctx context.Context) (paused int, err error) {
	p, err := eqvps.PrincipalFrom(ctx)
	if err != nil {
		return 0, err
	}
	if !p.Admin {
		return 0, eqvps.Errorf(eqvps.CodeForbidden, "Only the administrator may drain the server.")
	}
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	var work []func() error
	for _, l := range s.all() {
		if l.mode == eqvps.Persistent {
			work = append(work, func() error {
				_, err := s.pause(ctx, l.id, eqvps.ReasonShutdown)
				return err
			})
		}
	}
	return len(work), parallel(pausesAtOnce, work)
}

// pausesAtOnce bounds how many sandboxes are put away side by side: the disk is
// what they wait for.
const pausesAtOnce = 2
