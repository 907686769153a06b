package network

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// Break each privileged step once: the caller sees the error, and at the end
// nothing is left.
func TestEveryStepMayFail(t *testing.T) {
	var labels []string
	var breakAt string
	broken := errors.New("broken on purpose")
	m := newManager(t, func(c *Config) {
		c.Step = func(label string) error {
			labels = append(labels, label)
			if label == breakAt {
				breakAt = ""
				return broken
			}
			return nil
		}
	})
	before := traces(t, m)
	life := func() error {
		s, err := m.Create(t.Context())
		if err != nil {
			return err
		}
		if err := s.Close(t.Context()); err != nil {
			return errors.Join(err, s.Close(t.Context()))
		}
		return nil
	}
	if err := life(); err != nil {
		t.Fatal(err)
	}
	steps := slices.Clone(labels)
	for _, want := range []string{"claim slot", "pin namespace", "write slot rules", "make tap", "make veth", "write host rules", "remove veth", "unpin namespace", "release slot"} {
		if !slices.Contains(steps, want) {
			t.Errorf("no step %q in %q", want, steps)
		}
	}
	for _, label := range steps {
		t.Run(label, func(t *testing.T) {
			breakAt = label
			if err := life(); !errors.Is(err, broken) || !strings.Contains(err.Error(), label) {
				t.Errorf("the error is %v, want one that names the step", err)
			}
			wantTraces(t, m, before)
		})
	}
}

// End the server at each step, which from there on undoes nothing: the next one reclaims.
func TestEveryStepMayBeTheLast(t *testing.T) {
	var labels []string
	dieAt, dead := "", false
	died := errors.New("died")
	dir := t.TempDir()
	m := newManager(t, func(c *Config) {
		c.RunDir = dir
		c.Step = func(label string) error {
			labels = append(labels, label)
			if dead = dead || label == dieAt; dead {
				return died
			}
			return nil
		}
	})
	before := traces(t, m)
	life := func() error {
		s, err := m.Create(t.Context())
		if err != nil {
			return err
		}
		return s.Close(t.Context())
	}
	if err := life(); err != nil {
		t.Fatal(err)
	}
	for _, label := range slices.Clone(labels) {
		t.Run(label, func(t *testing.T) {
			dieAt, dead = label, false
			if err := life(); !errors.Is(err, died) {
				t.Fatalf("life went on: %v", err)
			}
			next := newManager(t, func(c *Config) { c.RunDir, c.Owner = dir, m.cfg.Owner })
			if _, err := next.Reclaim(t.Context(), func(int) bool { return false }); err != nil {
				t.Error(err)
			}
			wantTraces(t, m, before)
		})
	}
}

// A slot that could be neither finished nor undone waits for Reclaim.
func TestReclaimAfterAFailedUndo(t *testing.T) {
	failing := true
	m := newManager(t, func(c *Config) {
		c.Step = func(label string) error {
			if failing && (label == "make veth" || label == "unpin namespace") {
				return errors.New("broken on purpose")
			}
			return nil
		}
	})
	before := traces(t, m)
	if _, err := m.Create(t.Context()); err == nil {
		t.Fatal("a broken step went unnoticed")
	}
	failing = false
	if removed, err := m.Reclaim(t.Context(), func(int) bool { return false }); err != nil || removed != 1 {
		t.Errorf("removed %d slots (%v), want 1", removed, err)
	}
	wantTraces(t, m, before)
}

func TestReclaim(t *testing.T) {
	dir := t.TempDir()
	server := func(owner string, change ...func(*Config)) *Manager {
		return newManager(t, append(change, func(c *Config) { c.RunDir, c.Owner = dir, owner })...)
	}
	first, stranger := server("a"), server("b")
	before := traces(t, first)
	kept, lost, foreign := newSlot(t, first), newSlot(t, first), newSlot(t, stranger)

	next := server("a")
	fresh := newSlot(t, next) // made before Reclaim, and safe from it
	removed, err := next.Reclaim(t.Context(), func(index int) bool { return index == kept.Index() })
	if err != nil || removed != 1 {
		t.Errorf("removed %d slots (%v), want 1", removed, err)
	}
	s, err := next.Open(kept.Index())
	if err != nil {
		t.Fatal(err)
	}
	g := newGuest(t, s)
	if _, _, err := greeting(g.path, publicAddr+":80"); err != nil {
		t.Errorf("the adopted slot does not work: %v", err)
	}
	for _, index := range []int{lost.Index(), foreign.Index(), 12345} {
		if _, err := next.Open(index); !errors.Is(err, ErrGone) {
			t.Errorf("slot %d: %v, want ErrGone", index, err)
		}
	}
	if _, err := stranger.Open(foreign.Index()); err != nil {
		t.Errorf("the other server lost its slot: %v", err)
	}

	heir := server("c", func(c *Config) { c.OwnerGone = func(owner string) bool { return owner == "b" } })
	if removed, err := heir.Reclaim(t.Context(), func(int) bool { return false }); err != nil || removed != 1 {
		t.Errorf("removed %d slots of a dead server (%v), want 1", removed, err)
	}
	for _, s := range []*Slot{s, fresh} {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	wantTraces(t, first, before)
}

func TestOpenNeedsAllParts(t *testing.T) {
	dir := t.TempDir()
	config := func(c *Config) { c.RunDir = dir }
	m := newManager(t, config)
	for name, damage := range map[string]func(*Slot) error{
		"no namespace": func(s *Slot) error { return unpin(s.Namespace()) },
		"no veth": func(s *Slot) error {
			return m.links.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: s.rec.veth()}})
		},
		"no tap": func(s *Slot) error {
			return inNamespace(enterNamed(s.Namespace()), func() error {
				return netlink.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: s.Tap()}})
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSlot(t, m)
			if err := damage(s); err != nil {
				t.Fatal(err)
			}
			if _, err := newManager(t, config, func(c *Config) { c.Owner = m.cfg.Owner }).Open(s.Index()); !errors.Is(err, ErrGone) {
				t.Errorf("Open returned %v, want ErrGone", err)
			}
		})
	}
}
