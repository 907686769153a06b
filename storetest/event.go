package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
)

func events(t *testing.T, s Store, id string, after int64, limit int) []eqvps.Event {
	t.Helper()
	list, err := s.FindEvents(t.Context(), id, after, limit)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// note adds one event and fails the test if that cannot be done.
func note(t *testing.T, s Store, id string, at time.Time, kind eqvps.EventKind) {
	t.Helper()
	got, err := s.UpdateSandbox(t.Context(), id, func(sb *eqvps.Sandbox) error {
		sb.Note(at, kind, eqvps.ReasonCall, "by hand")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.NewEvents) != 0 {
		t.Error("a stored event would be stored again")
	}
}

func testEvents(t *testing.T, s Store) {
	a := account(t, s, "alice")
	sb, other := sandbox(t, s, a), sandbox(t, s, a)
	note(t, s, sb.ID, now.Add(time.Second), eqvps.EventPaused)
	note(t, s, other.ID, now, eqvps.EventResumed)

	list := events(t, s, sb.ID, 0, 10)
	if len(list) != 2 || list[0].Kind != eqvps.EventCreated || list[0].Seq >= list[1].Seq {
		t.Fatalf("events %+v", list)
	}
	want := eqvps.Event{Seq: list[1].Seq, SandboxID: sb.ID, At: now.Add(time.Second), Kind: eqvps.EventPaused, Reason: eqvps.ReasonCall, Detail: "by hand"}
	same(t, list[1], want)
	same(t, events(t, s, sb.ID, 0, 1), list[:1])
	same(t, events(t, s, sb.ID, list[0].Seq, 10), list[1:])
	same(t, events(t, s, sb.ID, list[1].Seq, 10), []eqvps.Event(nil))

	// A change that is not made has not happened.
	_, err := s.UpdateSandbox(t.Context(), sb.ID, func(sb *eqvps.Sandbox) error {
		sb.Note(now, eqvps.EventEnded, "", "")
		return errors.New("no")
	})
	if err == nil || len(events(t, s, sb.ID, 0, 10)) != 2 {
		t.Error("an event was kept of a change that failed")
	}

	// The oldest of very many go.
	if _, err := s.UpdateSandbox(t.Context(), sb.ID, func(sb *eqvps.Sandbox) error {
		for range eqvps.MaxEvents {
			sb.Note(now, eqvps.EventExtended, "", "")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	list = events(t, s, sb.ID, 0, 2*eqvps.MaxEvents)
	if len(list) != eqvps.MaxEvents || list[0].Kind != eqvps.EventExtended {
		t.Errorf("%d events, the first %q", len(list), list[0].Kind)
	}

	// Only those of sandboxes that ended before are forgotten.
	end := func(id string, at time.Time) {
		if _, err := s.UpdateSandbox(t.Context(), id, func(sb *eqvps.Sandbox) error {
			sb.State, sb.EndedAt = eqvps.StateDeleted, at
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	lives := sandbox(t, s, a)
	end(sb.ID, now)
	end(other.ID, now.Add(time.Hour))
	if err := s.ForgetEvents(t.Context(), now.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]int{sb.ID: 0, other.ID: 2, lives.ID: 1} {
		if n := len(events(t, s, id, 0, 10)); n != want {
			t.Errorf("%d events are left, want %d", n, want)
		}
	}
}

func testAlive(t *testing.T, s Store) {
	at, err := s.LastAlive(t.Context())
	if err != nil || !at.IsZero() {
		t.Errorf("a fresh store was last alive at %s (%v)", at, err)
	}
	for i := range 2 {
		want := now.Add(time.Duration(i) * time.Second)
		if err := s.NoteAlive(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		at, err = s.LastAlive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		same(t, at, want)
	}
}
