package network

import (
	"context"
	"testing"
)

func TestCreate(t *testing.T) {
	m := newManager(t)
	s := newSlot(t, m)
	t.Log(s.Index(), s.Namespace(), m.MTU())
	g := newGuest(t, s)
	c, srv, err := greeting(g.path, publicAddr+":80")
	t.Log(c, srv, err)
	if err := s.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func BenchmarkSlot(b *testing.B) {
	m, err := New(Config{Owner: "b", RunDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	keep, err := m.Create(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer keep.Close(context.Background())
	b.Run("create", func(b *testing.B) {
		for b.Loop() {
			s, err := m.Create(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			s.Close(context.Background())
			b.StartTimer()
		}
	})
	b.Run("close", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			s, err := m.Create(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			s.Close(context.Background())
		}
	})
}
