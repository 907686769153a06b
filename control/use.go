package control

import (
	"context"
	"time"

	"github.com/eqvps/eqvps"
)

// used is a sandbox's inside as callers get it: each call counts as activity,
// wakes it if it was paused for being idle, and says so if it ended.
type used struct {
	s  *Service
	id string
}

// Use gives access to the inside of a sandbox, and wakes it if need be.
func (s *Service) Use(ctx context.Context, id string) (eqvps.Guest, error) {
	if _, err := s.awake(ctx, id); err != nil {
		return nil, err
	}
	return used{s, id}, nil
}

// enter begins a call.
func (u used) enter(ctx context.Context) (l *live, end func(), err error) {
	for {
		if l, err = u.s.awake(ctx, u.id); err != nil {
			return nil, nil, err
		}
		if end, ok := l.begin(u.s.now); ok {
			return l, end, nil
		}
		// It is just being paused; awake waits for that.
		if err := u.s.settled(ctx, u.id); err != nil {
			return nil, nil, err
		}
	}
}

// Ping asks the guest for a sign of life, without counting as activity.
func (s *Service) Ping(ctx context.Context, id string) error {
	sb, err := s.Get(ctx, id)
	if err != nil {
		return err
	}
	l := s.lookup(id)
	if l == nil {
		return unusable(sb)
	}
	return s.explain(ctx, l, l.machine.Ping(ctx))
}

// awake returns the live sandbox that the caller names. One that was paused and
// wakes by itself is resumed.
func (s *Service) awake(ctx context.Context, id string) (*live, error) {
	p, err := eqvps.PrincipalFrom(ctx)
	if err != nil {
		return nil, err
	}
	if l := s.lookup(id); l != nil && (p.Admin || l.account == p.AccountID) {
		return l, nil
	}
	sb, err := s.find(ctx, p, id)
	if err != nil {
		return nil, err
	}
	if over(sb) || sb.State == eqvps.StateStarting || sb.State == eqvps.StatePaused && !sb.Wakes() {
		return nil, unusable(sb)
	}
	return s.wake(ctx, id)
}

// over tells whether a sandbox has ended, or ends and cannot be used again.
func over(sb *eqvps.Sandbox) bool {
	return sb.Ended() || sb.State == eqvps.StateDeleting
}

// unusable says why a sandbox cannot be used.
func unusable(sb *eqvps.Sandbox) error {
	switch {
	case over(sb):
		return eqvps.Errorf(eqvps.CodeSandboxEnded, "The sandbox has ended (%s).", sb.Reason)
	case sb.State == eqvps.StatePaused, sb.State == eqvps.StatePausing:
		return eqvps.Errorf(eqvps.CodePaused, "The sandbox is paused (%s).", sb.PauseReason)
	}
	return eqvps.Errorf(eqvps.CodeNotRunning, "The sandbox is %s.", sb.State)
}

// deathNotice is how much later than its channel a machine's end may be seen.
const deathNotice = time.Second

// explain turns the failure of a call into its cause where the sandbox ended or
// was paused meanwhile.
func (s *Service) explain(ctx context.Context, l *live, err error) error {
	if eqvps.ErrorCode(err) != eqvps.CodeUnreachable || ctx.Err() != nil {
		return err
	}
	died := false
	select {
	case <-l.machine.Done():
		died = true
	case <-time.After(deathNotice):
	case <-ctx.Done():
		return err
	}
	found, ferr := s.store.FindSandboxes(ctx, eqvps.SandboxFilter{ID: l.id, Limit: 1})
	if ferr != nil || len(found) == 0 {
		return err
	}
	sb := found[0]
	s.refresh(sb)
	switch {
	case over(sb), sb.State == eqvps.StatePaused, sb.State == eqvps.StatePausing:
		return unusable(sb)
	case died && l.mode == eqvps.Persistent:
		return eqvps.Errorf(eqvps.CodeNotRunning, "The sandbox's machine died under the call; it comes back from its disk.")
	case died:
		sb.State, sb.Reason = eqvps.StateDeleting, l.machine.Cause() // as its record is about to say
		return unusable(sb)
	}
	return err
}

func (u used) Exec(ctx context.Context, req eqvps.ExecRequest, out eqvps.Output) (eqvps.ExitStatus, error) {
	if err := req.Validate(); err != nil {
		return eqvps.ExitStatus{}, err
	}
	l, end, err := u.enter(ctx)
	if err != nil {
		return eqvps.ExitStatus{}, err
	}
	defer end()
	st, err := l.machine.Exec(ctx, req, out)
	return st, u.s.explain(ctx, l, err)
}

// Usage tells what a sandbox has used so far.
func (s *Service) Usage(ctx context.Context, id string) (eqvps.Usage, error) {
	sb, err := s.Get(ctx, id)
	if err != nil {
		return eqvps.Usage{}, err
	}
	used := eqvps.MachineUsage{CPUTime: sb.CPUTime, EgressBytes: sb.EgressBytes}
	if l := s.lookup(id); l != nil {
		used = l.usage(used)
	}
	now := s.now()
	return eqvps.Usage{
		Running: sb.Running(now), Hourly: sb.Hourly, Cost: sb.Cost(now),
		CPUTime: used.CPUTime, EgressBytes: used.EgressBytes,
	}, nil
}
