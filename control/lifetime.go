package control

import (
	"context"

	"github.com/eqvps/eqvps"
)

// Extend lengthens the life of a sandbox of the caller, or changes its idle
// timeout. It is activity, also where it is paused.
func (s *Service) Extend(ctx context.Context, id string, e eqvps.Extend) (*eqvps.Sandbox, error) {
	if err := e.Validate(); err != nil {
		return nil, err
	}
	if _, err := s.Get(ctx, id); err != nil {
		return nil, err
	}
	now := s.now()
	sb, err := s.store.UpdateSandbox(context.WithoutCancel(ctx), id, func(sb *eqvps.Sandbox) error {
		if over(sb) {
			return unusable(sb)
		}
		if err := e.Apply(sb); err != nil {
			return err
		}
		sb.LastActive = now
		sb.Note(now, eqvps.EventExtended, "", "")
		return nil
	})
	if err != nil {
		return nil, err
	}
	if l := s.lookup(id); l != nil {
		l.setTimes(sb)
		l.activeAt(now)
	}
	return sb, nil
}

// KeepAlive counts as a use of a sandbox of the caller.
func (s *Service) KeepAlive(ctx context.Context, id string) (*eqvps.Sandbox, error) {
	l, err := s.awake(ctx, id)
	if err != nil {
		return nil, err
	}
	l.activeAt(s.now())
	return s.Get(ctx, id)
}

// Events returns what happened to a sandbox of the caller.
func (s *Service) Events(ctx context.Context, id string, after int64, limit int) ([]eqvps.Event, error) {
	if _, err := s.Get(ctx, id); err != nil {
		return nil, err
	}
	return s.store.FindEvents(ctx, id, after, limit)
}
