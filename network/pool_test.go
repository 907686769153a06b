package network

import (
	"errors"
	"sync"
	"testing"
)

func TestPool(t *testing.T) {
	m := newManager(t)
	before := traces(t, m)
	p := NewPool(m, 2)
	seen := map[int]bool{}
	var slots []*Slot
	for range 5 {
		s, err := p.Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if seen[s.Index()] {
			t.Errorf("slot %d was handed out twice", s.Index())
		}
		seen[s.Index()] = true
		slots = append(slots, s)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Get(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed pool gave %v, want ErrClosed", err)
	}
	all, err := m.records()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != len(seen) {
		t.Errorf("%d slots left, want the %d handed out", len(all), len(seen))
	}
	for _, s := range slots {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	wantTraces(t, m, before)
}

// The pool fills without being asked, makes up for what is taken, and then rests.
func TestPoolFillsAndRests(t *testing.T) {
	var mu sync.Mutex
	made := 0
	grown := make(chan int, 100)
	m := newManager(t, func(c *Config) {
		c.Step = func(label string) error {
			if label == "set up host end" { // the last step
				mu.Lock()
				defer mu.Unlock()
				made++
				grown <- made
			}
			return nil
		}
	})
	p := NewPool(m, 2)
	for want := range 2 {
		if got := <-grown; got != want+1 {
			t.Fatalf("slot %d came, want %d", got, want+1)
		}
	}
	s, err := p.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := <-grown; got != 3 {
		t.Errorf("slot %d came after one was taken, want 3", got)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if len(grown) != 0 {
		t.Errorf("%d more slots were made than places are free", len(grown))
	}
}

func TestPoolReportsFailures(t *testing.T) {
	broken := errors.New("broken on purpose")
	m := newManager(t, func(c *Config) { c.Step = func(string) error { return broken } })
	p := NewPool(m, 1)
	if _, err := p.Get(t.Context()); !errors.Is(err, broken) {
		t.Errorf("got %v, want the reason", err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
