package control

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eqvps/eqvps"
)

// live is a sandbox whose machine runs: its connection and its activity.
type live struct {
	id          string
	machine     eqvps.Machine
	idleTimeout time.Duration
	expires     time.Time

	env sync.Mutex // one change of variables at a time

	mu     sync.Mutex
	calls  int       // calls under way: a sandbox that works is not idle
	last   time.Time // when the last call began or ended
	stored time.Time // what the store knows of last

	// ending is set while the sandbox is being asked about its tasks or ended
	// for that reason.
	ending map[eqvps.Reason]*atomic.Bool
}

func newLive(sb *eqvps.Sandbox, m eqvps.Machine, now time.Time) *live {
	return &live{
		id: sb.ID, machine: m, idleTimeout: sb.IdleTimeout, expires: sb.ExpiresAt(),
		last: now, stored: sb.LastActive,
		ending: map[eqvps.Reason]*atomic.Bool{eqvps.ReasonIdle: {}, eqvps.ReasonTTL: {}},
	}
}

// begin counts a call; the function it returns ends it.
func (l *live) begin(now func() time.Time) (end func()) {
	l.touch(now(), 1)
	return func() { l.touch(now(), -1) }
}

func (l *live) touch(now time.Time, calls int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls += calls
	l.last = now
}

// activeAt notes activity that a call did not tell of.
func (l *live) activeAt(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at.After(l.last) {
		l.last = at
	}
}

func (l *live) lastActive() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// due says whether, and why, the sandbox is over at a time.
func (l *live) due(now time.Time) (eqvps.Reason, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !now.Before(l.expires):
		return eqvps.ReasonTTL, true
	case l.calls == 0 && now.Sub(l.last) >= l.idleTimeout:
		return eqvps.ReasonIdle, true
	}
	return "", false
}

// unstored returns the last activity if the store does not have it yet.
func (l *live) unstored() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last, l.last.After(l.stored)
}

func (l *live) markStored(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stored = at
}

// used is a sandbox's inside as callers get it: each call counts as activity,
// and a call that fails because the sandbox ended says so.
type used struct {
	s *Service
	l *live
}

// Use gives access to the inside of a running sandbox.
func (s *Service) Use(ctx context.Context, id string) (eqvps.Guest, error) {
	l, err := s.running(ctx, id)
	if err != nil {
		return nil, err
	}
	return used{s, l}, nil
}

// Ping asks the guest for a sign of life, without counting as activity.
func (s *Service) Ping(ctx context.Context, id string) error {
	l, err := s.running(ctx, id)
	if err != nil {
		return err
	}
	return s.explain(ctx, l, l.machine.Ping(ctx))
}

// running returns the live sandbox that the caller names.
func (s *Service) running(ctx context.Context, id string) (*live, error) {
	sb, err := s.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if over(sb) {
		return nil, endedError(sb)
	}
	if sb.State != eqvps.StateRunning {
		return nil, eqvps.Errorf(eqvps.CodeNotRunning, "The sandbox is %s.", sb.State)
	}
	if l := s.lookup(id); l != nil {
		return l, nil
	}
	// The record was read an instant before the sandbox began to end.
	if sb, err = s.Get(ctx, id); err != nil {
		return nil, err
	}
	return nil, endedError(sb)
}

// over tells whether a sandbox has ended, or ends and cannot be used again.
func over(sb *eqvps.Sandbox) bool {
	return sb.Ended() || sb.State == eqvps.StateDeleting
}

func endedError(sb *eqvps.Sandbox) error {
	return eqvps.Errorf(eqvps.CodeSandboxEnded, "The sandbox has ended (%s).", sb.Reason)
}

// deathNotice is how much later than its channel a machine's end may be seen.
const deathNotice = time.Second

// explain turns the failure of a call into its cause where the sandbox ended
// meanwhile.
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
	if died && !over(sb) {
		sb.Reason = eqvps.ReasonError // as its record is about to say
	}
	if died || over(sb) {
		return endedError(sb)
	}
	return err
}

func (u used) Exec(ctx context.Context, req eqvps.ExecRequest, out eqvps.Output) (eqvps.ExitStatus, error) {
	if err := req.Validate(); err != nil {
		return eqvps.ExitStatus{}, err
	}
	defer u.l.begin(u.s.now)()
	st, err := u.l.machine.Exec(ctx, req, out)
	return st, u.s.explain(ctx, u.l, err)
}

func (u used) Upload(ctx context.Context, req eqvps.UploadRequest) (eqvps.FileInfo, error) {
	if err := eqvps.ValidatePath(req.Path); err != nil {
		return eqvps.FileInfo{}, err
	}
	defer u.l.begin(u.s.now)()
	fi, err := u.l.machine.Upload(ctx, req)
	return fi, u.s.explain(ctx, u.l, err)
}

func (u used) Download(ctx context.Context, path string) (eqvps.FileInfo, io.ReadCloser, error) {
	if err := eqvps.ValidatePath(path); err != nil {
		return eqvps.FileInfo{}, nil, err
	}
	end := u.l.begin(u.s.now)
	fi, r, err := u.l.machine.Download(ctx, path)
	if err != nil {
		end()
		return fi, nil, u.s.explain(ctx, u.l, err)
	}
	return fi, &endingReader{ReadCloser: r, end: sync.OnceFunc(end)}, nil
}

// endingReader ends the call it belongs to when it is closed.
type endingReader struct {
	io.ReadCloser
	end func()
}

func (r *endingReader) Close() error {
	defer r.end()
	return r.ReadCloser.Close()
}

func (u used) Stat(ctx context.Context, path string) (eqvps.FileInfo, error) {
	if err := eqvps.ValidatePath(path); err != nil {
		return eqvps.FileInfo{}, err
	}
	defer u.l.begin(u.s.now)()
	fi, err := u.l.machine.Stat(ctx, path)
	return fi, u.s.explain(ctx, u.l, err)
}

func (u used) ListFiles(ctx context.Context, path, after string, limit int) ([]eqvps.FileInfo, bool, error) {
	if err := eqvps.ValidatePath(path); err != nil {
		return nil, false, err
	}
	defer u.l.begin(u.s.now)()
	entries, more, err := u.l.machine.ListFiles(ctx, path, after, limit)
	return entries, more, u.s.explain(ctx, u.l, err)
}

// Usage tells what a sandbox has used so far.
func (s *Service) Usage(ctx context.Context, id string) (eqvps.Usage, error) {
	sb, err := s.Get(ctx, id)
	if err != nil {
		return eqvps.Usage{}, err
	}
	now := s.now()
	u := eqvps.Usage{
		Running: sb.Running(now), Hourly: sb.Hourly, Cost: sb.Cost(now),
		CPUTime: sb.CPUTime, EgressBytes: sb.EgressBytes,
	}
	if l := s.lookup(id); l != nil {
		// A machine that is just ending has no figures any more; the record
		// will have its last ones.
		if cpu, err := l.machine.CPUTime(); err == nil {
			u.CPUTime = cpu
		}
		if n, err := l.machine.EgressBytes(); err == nil {
			u.EgressBytes = n
		}
	}
	return u, nil
}
