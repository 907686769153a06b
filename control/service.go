// Package control runs the life of sandboxes: it creates, finds, uses and ends
// them, reaps idle and overdue ones, and puts things right after a crash. It
// knows hosts and stores only by their interfaces in the root package.
//
// The rules that everything here keeps:
//
//   - The record comes first and goes last. A machine without a record is an
//     orphan and is destroyed at the next start; a record without a machine is
//     ended with a reason.
//   - One function ends a sandbox (end), whatever the reason, and it can be
//     repeated: a crash in the middle is finished at the next start.
//   - Whoever moves a sandbox that has started to another state holds its lock.
//     Calls do not: they begin on a live sandbox or not at all.
//   - The store holds what must survive. What is only here (live) can be made
//     again from the store and the host.
package control

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/eqvps/eqvps"
)

// Store is what the services need to remember things.
type Store interface {
	eqvps.SandboxStore
	eqvps.TokenStore
	eqvps.AccountStore
	eqvps.SecretStore
	eqvps.EventStore
	eqvps.AliveStore
}

// Config is what a Service is made of. Store, Host, Tariffs and Keys are
// required.
type Config struct {
	Store   Store
	Keys    eqvps.Keyring // what is sealed with
	Host    eqvps.Host
	Tariffs eqvps.Tariffs
	// CPUAbuseWindow is how long a sandbox may keep its share of processor full
	// without a break; 0 is DefaultCPUAbuseWindow, less is for ever.
	CPUAbuseWindow time.Duration
	Now            func() time.Time // default time.Now
	Logger         *slog.Logger     // default slog.Default()
}

// Service implements eqvps.SandboxService, eqvps.TokenService and
// eqvps.SecretService.
type Service struct {
	store   Store
	keys    eqvps.Keyring
	host    eqvps.Host
	tariffs eqvps.Tariffs
	abuse   time.Duration // the window; less than 0: none
	now     func() time.Time
	log     *slog.Logger

	rotation sync.RWMutex // see sealing

	mu         sync.Mutex
	live       map[string]*live
	locked     map[string]chan struct{} // closed when the one who moves the sandbox from state to state is through
	draining   bool                     // the server is about to stop for longer
	unrecorded map[string]ending        // sandboxes that end, until the store knows
	touched    map[string]time.Time     // when a token's last use was last stored

	stop context.CancelFunc
	ctx  context.Context // ends with Close
	wg   sync.WaitGroup
}

var (
	_ eqvps.SandboxService = (*Service)(nil)
	_ eqvps.TokenService   = (*Service)(nil)
	_ eqvps.SecretService  = (*Service)(nil)
)

// New makes a service. Recover must be called before the first request.
func New(cfg Config) *Service {
	s := &Service{
		store: cfg.Store, host: cfg.Host, tariffs: cfg.Tariffs, keys: cfg.Keys,
		abuse: cfg.CPUAbuseWindow, now: cfg.Now, log: cfg.Logger,
		live: map[string]*live{}, locked: map[string]chan struct{}{}, unrecorded: map[string]ending{}, touched: map[string]time.Time{},
	}
	if s.abuse == 0 {
		s.abuse = DefaultCPUAbuseWindow
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// Close stops the background work and lets go of the machines, which run on:
// the next Service adopts them.
func (s *Service) Close() error {
	s.stop()
	s.wg.Wait()
	s.flushActivity(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for id, l := range s.live {
		errs = append(errs, l.machine.Close())
		delete(s.live, id)
	}
	return errors.Join(errs...)
}

// background runs f until it returns; Close waits for it.
func (s *Service) background(f func(ctx context.Context)) {
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		f(s.ctx)
	}()
}

// Get returns one sandbox of the caller.
func (s *Service) Get(ctx context.Context, id string) (*eqvps.Sandbox, error) {
	p, err := eqvps.PrincipalFrom(ctx)
	if err != nil {
		return nil, err
	}
	return s.find(ctx, p, id)
}

// find returns a sandbox that p may see. A foreign id and a malformed one get
// the same answer as one that never was.
func (s *Service) find(ctx context.Context, p eqvps.Principal, id string) (*eqvps.Sandbox, error) {
	absent := eqvps.Errorf(eqvps.CodeSandboxNotFound, "There is no sandbox %.40q.", id)
	if !eqvps.ValidSandboxID(id) {
		return nil, absent
	}
	f := eqvps.SandboxFilter{ID: id, AccountID: p.AccountID, Limit: 1}
	if p.Admin {
		f.AccountID = ""
	}
	found, err := s.store.FindSandboxes(ctx, f)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, absent
	}
	s.refresh(found[0])
	return found[0], nil
}

// List returns the caller's sandboxes, newest first; an administrator's list
// holds everybody's.
func (s *Service) List(ctx context.Context, f eqvps.SandboxFilter) ([]*eqvps.Sandbox, error) {
	p, err := eqvps.PrincipalFrom(ctx)
	if err != nil {
		return nil, err
	}
	if !p.Admin {
		f.AccountID = p.AccountID
	}
	found, err := s.store.FindSandboxes(ctx, f)
	if err != nil {
		return nil, err
	}
	for _, sb := range found {
		s.refresh(sb)
	}
	return found, nil
}

// refresh adds to a stored record what is known only here: activity is stored
// at intervals, and a full store cannot take an end.
func (s *Service) refresh(sb *eqvps.Sandbox) {
	s.mu.Lock()
	e, ending := s.unrecorded[sb.ID]
	s.mu.Unlock()
	if ending && !sb.Ended() && sb.State != eqvps.StateDeleting {
		e.apply(sb)
	}
	if l := s.lookup(sb.ID); l != nil {
		if at := l.lastActive(); at.After(sb.LastActive) {
			sb.LastActive = at
		}
	}
}

func (s *Service) lookup(id string) *live {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live[id]
}
