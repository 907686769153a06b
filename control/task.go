package control

import (
	"context"
	"time"

	"github.com/eqvps/eqvps"
)

// askTimeout bounds one question to a guest about its tasks.
const askTimeout = 10 * time.Second

// askGrace is how long a sandbox that would be idle lives on without an answer
// about its tasks: a guest that works hard is slow, and one that never answers
// is of no use to anybody.
const askGrace = time.Minute

// StartTask starts a task that may run as long as the sandbox lives, which may
// be extended later: the sandbox's end ends it.
func (u used) StartTask(ctx context.Context, req eqvps.StartTask) (*eqvps.Task, error) {
	l, end, err := u.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	unlimited := req.Timeout == 0
	if err := req.Validate(l.left(u.s.now())); err != nil {
		return nil, err
	}
	if unlimited {
		req.Timeout = l.mode.MaxTTL()
	}
	t, err := l.machine.StartTask(ctx, req)
	return t, u.s.explain(ctx, l, err)
}

func (u used) ReadTask(ctx context.Context, id string, r eqvps.ReadTask) (*eqvps.TaskOutput, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	if err := checkTaskID(id); err != nil {
		return nil, err
	}
	l, end, err := u.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	out, err := l.machine.ReadTask(ctx, id, r)
	return out, u.s.explain(ctx, l, err)
}

// ListTasks is no activity: whoever only looks keeps nothing alive.
func (u used) ListTasks(ctx context.Context) ([]*eqvps.Task, error) {
	l, err := u.s.awake(ctx, u.id)
	if err != nil {
		return nil, err
	}
	list, err := l.machine.ListTasks(ctx)
	return list, u.s.explain(ctx, l, err)
}

func (u used) KillTask(ctx context.Context, id string) (*eqvps.Task, error) {
	if err := checkTaskID(id); err != nil {
		return nil, err
	}
	l, end, err := u.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	t, err := l.machine.KillTask(ctx, id)
	return t, u.s.explain(ctx, l, err)
}

func checkTaskID(id string) error {
	if eqvps.ValidTaskID(id) {
		return nil
	}
	return eqvps.Errorf(eqvps.CodeTaskNotFound, "There is no task %.40q in the sandbox.", id)
}

// endIfDue ends a sandbox that is over, or pauses one that is persistent and
// idle. Only the guest knows of tasks that run, so one that seems idle is asked
// first. A guest may lie, but not beyond its time to live.
func (s *Service) endIfDue(ctx context.Context, l *live, reason eqvps.Reason) {
	if reason == eqvps.ReasonIdle && s.keptByTasks(ctx, l) {
		return
	}
	pause := l.mode == eqvps.Persistent && reason != eqvps.ReasonTTL
	if pause {
		if _, err := s.pause(ctx, l.id, reason); err != nil {
			s.log.Error("cannot pause a sandbox", "sandbox", l.id, "reason", reason, "err", err)
			l.activeAt(s.now()) // not again at once
		}
		return
	}
	s.log.Info("sandbox ends", "sandbox", l.id, "reason", reason)
	if err := s.end(ctx, l.id, reason); err != nil {
		s.log.Error("cannot end a sandbox; will try again", "sandbox", l.id, "err", err)
	}
}

// keptByTasks reports whether a sandbox that seems idle is not, because of its
// tasks: one runs, or the last one ended less than the idle timeout ago.
func (s *Service) keptByTasks(ctx context.Context, l *live) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	a, err := l.machine.TaskActivity(ctx)
	now := s.now()
	switch {
	case err != nil:
		return !l.overdue(now, askGrace)
	case a.Running > 0:
		l.activeAt(now)
	default:
		l.activeAt(a.LastEnd)
	}
	reason, due := l.due(now)
	return !due || reason != eqvps.ReasonIdle
}
