package control_test

import (
	"context"
	"sync"
	"time"

	"github.com/eqvps/eqvps"
)

// memStore keeps sandboxes in memory, for tests whose clock is not the real
// one: a database driver's goroutines cannot live in a synctest bubble.
type memStore struct {
	eqvps.TokenStore
	eqvps.AccountStore
	eqvps.SecretStore
	mu   sync.Mutex
	all  map[string]eqvps.Sandbox
	full bool // updates fail, as on a full disk

	events []eqvps.Event
	alive  time.Time
}

func (s *memStore) setFull(full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = full
}

func newMemStore() *memStore { return &memStore{all: map[string]eqvps.Sandbox{}} }

func (s *memStore) CreateSandbox(_ context.Context, sb *eqvps.Sandbox) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keep(sb)
	return nil
}

// keep stores a record and its events.
func (s *memStore) keep(sb *eqvps.Sandbox) {
	for _, e := range sb.NewEvents {
		e.Seq = int64(len(s.events) + 1)
		s.events = append(s.events, e)
	}
	sb.NewEvents = nil
	s.all[sb.ID] = *sb
}

func (s *memStore) FindEvents(_ context.Context, id string, after int64, limit int) (out []eqvps.Event, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.SandboxID == id && e.Seq > after && len(out) < limit {
			out = append(out, e)
		}
	}
	return out, nil
}

func (s *memStore) ForgetEvents(context.Context, time.Time) error { return nil }

func (s *memStore) NoteAlive(_ context.Context, at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alive = at
	return nil
}

func (s *memStore) LastAlive(context.Context) (time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alive, nil
}

func (s *memStore) UpdateSandbox(_ context.Context, id string, change func(*eqvps.Sandbox) error) (*eqvps.Sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full {
		return nil, eqvps.Errorf(eqvps.CodeCapacity, "full")
	}
	sb, ok := s.all[id]
	if !ok {
		return nil, eqvps.Errorf(eqvps.CodeSandboxNotFound, "no %s", id)
	}
	if err := change(&sb); err != nil {
		return nil, err
	}
	s.keep(&sb)
	return &sb, nil
}

func (s *memStore) FindSandboxes(_ context.Context, f eqvps.SandboxFilter) ([]*eqvps.Sandbox, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*eqvps.Sandbox
	for _, sb := range s.all {
		if (f.ID == "" || f.ID == sb.ID) && (f.AccountID == "" || f.AccountID == sb.AccountID) &&
			(f.Ended == nil || *f.Ended == sb.Ended()) {
			out = append(out, &sb)
		}
	}
	return out, nil
}

func (s *memStore) TouchToken(context.Context, string, time.Time) error { return nil }
