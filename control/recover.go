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
	reapEvery  = time.Second      // so late can an idle or overdue sandbox end
	flushEvery = 15 * time.Second // so much activity can a killed server forget
	retryEvery = 10 * time.Second // a sandbox that could not be freed is tried again
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
	known := map[string]bool{}
	var work []func() error
	for _, sb := range unfinished {
		known[sb.ID] = true
		work = append(work, func() error { return s.recoverOne(ctx, sb) })
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

func (s *Service) recoverOne(ctx context.Context, sb *eqvps.Sandbox) error {
	switch sb.State {
	case eqvps.StateRunning:
		m, err := s.host.Adopt(ctx, sb.ID)
		if err != nil {
			s.log.Warn("a sandbox's machine is gone", "sandbox", sb.ID, "err", err)
			return s.end(ctx, sb.ID, eqvps.ReasonHostLost)
		}
		// Nobody could use it while no server was there: its idle time starts anew.
		s.watch(newLive(sb, m, s.now()))
		s.log.Info("sandbox adopted", "sandbox", sb.ID)
		return nil
	default:
		// Starting: its caller got no answer. Deleting: finish it.
		return s.end(ctx, sb.ID, eqvps.ReasonError)
	}
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
	lastFlush, lastRetry := s.now(), s.now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := s.now()
		s.reap(ctx, now)
		if now.Sub(lastFlush) >= flushEvery {
			s.flushActivity(ctx)
			lastFlush = now
		}
		if now.Sub(lastRetry) >= retryEvery {
			s.retryEnds(ctx)
			lastRetry = now
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

// flushActivity stores the last activity of the sandboxes that had some.
func (s *Service) flushActivity(ctx context.Context) {
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
			recordUsage(sb, l.machine)
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
// not be freed.
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
	for _, sb := range unfinished {
		// One that was marked a moment ago is being freed by whoever marked it.
		if sb.State == eqvps.StateDeleting && s.now().Sub(sb.EndedAt) > endTimeout {
			if err := s.end(ctx, sb.ID, sb.Reason); err != nil {
				s.log.Error("still cannot free a sandbox", "sandbox", sb.ID, "err", err)
			}
		}
	}
}
