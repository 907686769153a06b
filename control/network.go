package control

import (
	"context"

	"github.com/eqvps/eqvps"
)

// SetNetwork changes what a sandbox of the caller may reach. The record has it
// first: what fails on the way to the machine is repeated by the same call, and
// holds from the next resume on in any case.
func (s *Service) SetNetwork(ctx context.Context, id string, p eqvps.NetworkPolicy) (*eqvps.Sandbox, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if _, err := s.Get(ctx, id); err != nil {
		return nil, err
	}
	// Two changes at once, and a pause, must come to record and machine in one order.
	unlock, err := s.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	ctx = context.WithoutCancel(ctx)
	now := s.now()
	sb, err := s.store.UpdateSandbox(ctx, id, func(sb *eqvps.Sandbox) error {
		if over(sb) || sb.State == eqvps.StateStarting {
			return unusable(sb)
		}
		sb.Network, sb.LastActive = p, now
		sb.Note(now, eqvps.EventNetworkChanged, "", string(p.Mode))
		return nil
	})
	if err != nil {
		return nil, err
	}
	if l := s.lookup(id); l != nil {
		l.activeAt(now)
		if err := l.machine.SetNetwork(ctx, p); err != nil {
			return nil, s.explain(ctx, l, eqvps.WrapError(eqvps.CodeUnreachable, err))
		}
	}
	return sb, nil
}
