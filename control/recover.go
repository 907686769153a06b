package control

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/eqvps/eqvps"
)

// The periods of the background work.
const (
	reapEvery   = time.Second      // so late can an idle or overdue sandbox end
	flushEvery  = 15 * time.Second // so much activity can a killed server forget
	retryEvery  = 10 * time.Second // a sandbox that could not be freed is tried again
	forgetEvery = time.Hour        // events that are too old are removed
)

// recoverAtOnce bounds how many machines are adopted side by side.
const recoverAtOnce = 8

// Recover puts store and host in accord after a restart, however the last
// process ended, and then starts the background work. Sandboxes whose machines
// run on are adopted; all others end with a reason, and whatever a host still
// holds for nobody is destroyed.
func (s *Service) Recover(ctx context.Context) error {
	open := false
	unfinished, err := s.store.FindSandboxes(ctx, eqvps.SandboxFilter{Ended: &open})
	if err != nil {
		return err
	}
	records, err := s.host.Records()
	if err != nil {
		return err
	}
	alive, err := s.store.LastAlive(ctx)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	var work []func() error
	for _, sb := range unfinished {
		known[sb.ID] = true
		work = append(work, func() error { return s.recoverOne(ctx, sb, alive) })
	}
	for _, id := range records {
		if !known[id] {
			work = append(work, func() error {
				s.log.Info("destroying a machine without a sandbox", "machine", id)
				return s.host.Destroy(ctx, id)
			})
		}
	}
	if err := parallel(recoverAtOnce, work); err != nil {
		return err
	}
	s.background(s.reapLoop)
	return nil
}

// recoverOne puts one sandbox right that has not ended. alive is when a server
// was last there: what ran then ran until then, and nobody knows of later.
func (s *Service) recoverOne(ctx context.Context, sb *eqvps.Sandbox, alive time.Time) error {
	lost := sb.LastActive
	if alive.After(lost) && !alive.After(s.now()) {
		lost = alive
	}
	switch sb.State {
	case eqvps.StateRunning, eqvps.StateResuming:
		m, err := s.host.Adopt(ctx, sb.ID)
		if err == nil {
			return s.adopted(ctx, sb, m)
		}
		s.log.Warn("a sandbox's machine is gone", "sandbox", sb.ID, "err", err)
		if sb.Mode == eqvps.Persistent {
			return s.bringLater(ctx, sb, lost)
		}
		return s.endAt(ctx, sb.ID, eqvps.ReasonHostLost, lost)
	case eqvps.StatePausing:
		return s.bringLater(ctx, sb, lost)
	case eqvps.StatePaused:
		if sb.PauseReason == eqvps.ReasonShutdown {
			return s.bringLater(ctx, sb, lost)
		}
		return nil
	default:
		// Starting: its caller got no answer. Deleting: finish it.
		return s.end(ctx, sb.ID, eqvps.ReasonError)
	}
}

// adopted takes over a machine that ran on. Nobody could use it while no server
// was there: its idle time starts anew.
func (s *Service) adopted(ctx context.Context, sb *eqvps.Sandbox, m eqvps.Machine) error {
	now := s.now()
	if sb.State == eqvps.StateResuming {
		var err error
		sb, err = s.store.UpdateSandbox(ctx, sb.ID, func(sb *eqvps.Sandbox) error {
			sb.Run(now)
			sb.Note(now, eqvps.EventResumed, "", "")
			return nil
		})
		if err != nil {
			m.Close()
			return err
		}
	}
	s.watch(s.newLive(sb, m, now))
	s.log.Info("sandbox adopted", "sandbox", sb.ID)
	return nil
}

// bringLater brings a persistent sandbox back once the server serves. Whoever
// uses it sooner waits for it.
func (s *Service) bringLater(ctx context.Context, sb *eqvps.Sandbox, lost time.Time) error {
	_, err := s.store.UpdateSandbox(ctx, sb.ID, func(sb *eqvps.Sandbox) error {
		if sb.State == eqvps.StateRunning {
			halt(sb, nil, lost)
			sb.PauseReason = eqvps.ReasonHostLost
		}
		sb.State = eqvps.StateResuming
		return nil
	})
	if err != nil {
		return err
	}
	s.background(func(ctx context.Context) {
		// bring logs what goes wrong, and the next use tries again.
		_, _ = s.resume(ctx, sb.ID, false)
	})
	return nil
}

// parallel runs all of work, at most n at a time, and returns all errors.
func parallel(n int, work []func() error) error {
	errs := make([]error, len(work))
	sem := make(chan struct{}, n)
	var wg sync.WaitGroup
	for i, f := range work {
		sem <- struct{}{}
		wg.Go(func() {
			defer func() { <-sem }()
			errs[i] = f()
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// reapLoop ends what is over, stores activity and finishes what could not be
// freed at once, until ctx ends.
func (s *Service) reapLoop(ctx context.Context) {
	tick := time.NewTicker(reapEvery)
	defer tick.Stop()
	lastFlush, lastRetry, lastForget := s.now(), s.now(), time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := s.now()
		s.reap(ctx, now)
		s.stopAbuse(now)
		if now.Sub(lastFlush) >= flushEvery {
			s.flushActivity(ctx)
			lastFlush = now
		}
		if now.Sub(lastRetry) >= retryEvery {
			s.retryEnds(ctx)
			lastRetry = now
		}
		if now.Sub(lastForget) >= forgetEvery {
			if err := s.store.ForgetEvents(ctx, now.Add(-eqvps.EventLife)); err != nil {
				s.log.Error("cannot remove old events", "err", err)
			}
			lastForget = now
		}
	}
}

// reap ends every sandbox that is idle or overdue, side by side: one that is
// slow to go holds up no other.
func (s *Service) reap(ctx context.Context, now time.Time) {
	for _, l := range s.all() {
		reason, due := l.due(now)
		if !due || l.ending[reason].Swap(true) {
			continue
		}
		s.background(func(context.Context) {
			defer l.ending[reason].Store(false)
			s.endIfDue(ctx, l, reason)
		})
	}
}

func (s *Service) all() []*live {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*live, 0, len(s.live))
	for _, l := range s.live {
		out = append(out, l)
	}
	return out
}

// flushActivity stores that the server is there, and the last activity of the
// sandboxes that had some.
func (s *Service) flushActivity(ctx context.Context) {
	if err := s.store.NoteAlive(ctx, s.now()); err != nil {
		s.log.Error("cannot note that the server is there", "err", err)
	}
	for _, l := range s.all() {
		at, changed := l.unstored()
		if !changed {
			continue
		}
		_, err := s.store.UpdateSandbox(ctx, l.id, func(sb *eqvps.Sandbox) error {
			if sb.State != eqvps.StateRunning {
				return errChanged
			}
			sb.LastActive = at
			l.recordUsage(sb)
			return nil
		})
		switch {
		case err == nil:
			l.markStored(at)
		case !errors.Is(err, errChanged):
			s.log.Error("cannot store activity", "sandbox", l.id, "err", err)
		}
	}
}

// retryEnds finishes sandboxes whose end could not be recorded, or that could
// not be freed, and ends paused ones whose time to live is over.
func (s *Service) retryEnds(ctx context.Context) {
	s.mu.Lock()
	unrecorded := maps.Clone(s.unrecorded)
	s.mu.Unlock()
	for id, e := range unrecorded {
		if err := s.end(ctx, id, e.reason); err != nil {
			s.log.Error("still cannot record the end of a sandbox", "sandbox", id, "err", err)
		}
	}
	open := false
	unfinished, err := s.store.FindSandboxes(ctx, eqvps.SandboxFilter{Ended: &open})
	if err != nil {
		s.log.Error("cannot look for unfinished sandboxes", "err", err)
		return
	}
	now := s.now()
	for _, sb := range unfinished {
		if sb.State == eqvps.StatePaused && !now.Before(sb.ExpiresAt()) {
			if err := s.end(ctx, sb.ID, eqvps.ReasonTTL); err != nil {
				s.log.Error("cannot end a paused sandbox; will try again", "sandbox", sb.ID, "err", err)
			}
		}
		// One that was marked a moment ago is being freed by whoever marked it.
		if sb.State == eqvps.StateDeleting && now.Sub(sb.EndedAt) > endTimeout {
			if err := s.end(ctx, sb.ID, sb.Reason); err != nil {
				s.log.Error("still cannot free a sandbox", "sandbox", sb.ID, "err", err)
			}
		}
	}
}
