// Package storetest is the contract of the store: every implementation runs
// the same suite, so that what holds on one database holds on the next.
package storetest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/eqvps/eqvps"
)

// Store is all that a store implements.
type Store interface {
	eqvps.SandboxStore
	eqvps.TokenStore
	eqvps.AccountStore
	eqvps.SecretStore
	eqvps.EventStore
	eqvps.AliveStore
}

// now has microseconds, the finest time that a store keeps.
var now = time.Date(2026, 7, 28, 10, 20, 30, 123456000, time.UTC)

// Run checks a store. The function makes a new and empty one, and sees to it
// that it is closed when the test ends.
func Run(t *testing.T, open func(*testing.T) Store) {
	for name, f := range map[string]func(*testing.T, Store){
		"Accounts":          testAccounts,
		"Tokens":            testTokens,
		"TokenRevoke":       testTokenRevoke,
		"Secrets":           testSecrets,
		"SecretLimit":       testSecretLimit,
		"Reseal":            testReseal,
		"SandboxRoundTrip":  testSandboxRoundTrip,
		"SandboxFilter":     testSandboxFilter,
		"SandboxUpdate":     testSandboxUpdate,
		"SandboxPanic":      testSandboxPanic,
		"SandboxConcurrent": testSandboxConcurrent,
		"SandboxModel":      testSandboxModel,
		"Events":            testEvents,
		"Alive":             testAlive,
	} {
		t.Run(name, func(t *testing.T) { f(t, open(t)) })
	}
}

func account(t *testing.T, s Store, name string) *eqvps.Account {
	t.Helper()
	a := eqvps.NewAccount(name, now)
	if err := s.CreateAccount(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	return a
}

func token(t *testing.T, s Store, a *eqvps.Account, name string) (*eqvps.Token, string) {
	t.Helper()
	tok, secret, err := eqvps.NewToken(a.ID, name, false, now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CreateToken(t.Context(), tok); err != nil {
		t.Fatal(err)
	}
	return tok, secret
}

func newSandbox(a *eqvps.Account) *eqvps.Sandbox {
	c := eqvps.CreateSandbox{Env: map[string]string{"B": "2", "A": "1"}}
	if err := c.Validate(); err != nil {
		panic(err)
	}
	return eqvps.NewSandbox(c, eqvps.Principal{AccountID: a.ID, TokenID: "tok_1"}, eqvps.DefaultTariffs[1], now)
}

func sandbox(t *testing.T, s Store, a *eqvps.Account) *eqvps.Sandbox {
	t.Helper()
	sb := newSandbox(a)
	if err := s.CreateSandbox(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	return sb
}

func find(t *testing.T, s Store, f eqvps.SandboxFilter) []*eqvps.Sandbox {
	t.Helper()
	list, err := s.FindSandboxes(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func wantCode(t *testing.T, err error, want eqvps.Code) {
	t.Helper()
	if got := eqvps.ErrorCode(err); got != want {
		t.Errorf("error %v has the code %q, want %q", err, got, want)
	}
}

func same(t *testing.T, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
}

func testAccounts(t *testing.T, s Store) {
	_, err := s.FindAccountByName(t.Context(), "alice")
	wantCode(t, err, eqvps.CodeNotFound)
	a := account(t, s, "alice")
	got, err := s.FindAccountByName(t.Context(), "alice")
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, a)
	if err := s.CreateAccount(t.Context(), eqvps.NewAccount("alice", now)); err == nil {
		t.Error("a second account of the same name was made")
	}
}

func testTokens(t *testing.T, s Store) {
	a, b := account(t, s, "alice"), account(t, s, "bob")
	first, secret := token(t, s, a, "first")
	second, _ := token(t, s, a, "second")
	token(t, s, b, "foreign")

	got, err := s.FindTokenByHash(t.Context(), eqvps.HashToken(secret))
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, first)
	_, err = s.FindTokenByHash(t.Context(), eqvps.HashToken(secret+"x"))
	wantCode(t, err, eqvps.CodeTokenNotFound)

	list, err := s.ListTokens(t.Context(), a.ID)
	if err != nil {
		t.Fatal(err)
	}
	same(t, list, []*eqvps.Token{second, first})

	dup := *second
	dup.ID, dup.Hash = "tok_00000000000000000000", first.Hash
	if err := s.CreateToken(t.Context(), &dup); err == nil {
		t.Error("two tokens share one hash")
	}

	later := now.Add(time.Minute)
	if err := s.TouchToken(t.Context(), first.ID, later); err != nil {
		t.Fatal(err)
	}
	// A late writer does not turn the clock back.
	if err := s.TouchToken(t.Context(), first.ID, now); err != nil {
		t.Fatal(err)
	}
	got, err = s.FindTokenByHash(t.Context(), first.Hash)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got.LastUsed, later)
	wantCode(t, s.TouchToken(t.Context(), "tok_unknown", now), eqvps.CodeTokenNotFound)
}

func testTokenRevoke(t *testing.T, s Store) {
	a, b := account(t, s, "alice"), account(t, s, "bob")
	tok, _ := token(t, s, a, "ci")
	wantCode(t, s.RevokeToken(t.Context(), b.ID, tok.ID, now), eqvps.CodeTokenNotFound)
	wantCode(t, s.RevokeToken(t.Context(), a.ID, "tok_unknown", now), eqvps.CodeTokenNotFound)
	for i := range 2 {
		if err := s.RevokeToken(t.Context(), a.ID, tok.ID, now.Add(time.Duration(i)*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.FindTokenByHash(t.Context(), tok.Hash)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got.RevokedAt, now)
}

func testSandboxRoundTrip(t *testing.T, s Store) {
	a := account(t, s, "alice")
	sb := sandbox(t, s, a)
	same(t, find(t, s, eqvps.SandboxFilter{ID: sb.ID}), []*eqvps.Sandbox{sb})

	// Every field changes, and every field comes back.
	want := *sb
	want.TokenID, want.Mode, want.Tariff, want.Image = "tok_2", eqvps.Persistent, "max", "img_1"
	want.State, want.Reason = eqvps.StateDeleted, eqvps.ReasonIdle
	want.EnvKeys = []string{"C", `D"'`}
	want.IdleTimeout, want.TTL = 1500*time.Millisecond, 30*24*time.Hour
	want.CreatedAt, want.StartedAt = now.Add(1*time.Microsecond), now.Add(2*time.Microsecond)
	want.LastActive, want.EndedAt = now.Add(3*time.Microsecond), now.Add(4*time.Microsecond)
	want.Hourly = 1 << 60
	want.CPUTime, want.EgressBytes = 90*time.Second+time.Microsecond, 1<<62
	want.PausedAt, want.PauseReason = now.Add(5*time.Microsecond), eqvps.ReasonCall
	want.Ran = eqvps.RunTime{"2026-07": 31 * 24 * time.Hour, "2026-08": time.Microsecond}
	want.RunningSince = now.Add(6 * time.Microsecond)
	want.Before = eqvps.MachineUsage{CPUTime: 3 * time.Second, EgressBytes: 1 << 61}
	want.Sealed = []byte{0, 1, 255}
	rule, err := eqvps.ParseNetworkRule("192.0.2.0/24", "8000-8100", "udp")
	if err != nil {
		t.Fatal(err)
	}
	want.Network = eqvps.NetworkPolicy{Mode: eqvps.NetworkRestricted, Allow: []eqvps.NetworkRule{rule}}
	got, err := s.UpdateSandbox(t.Context(), sb.ID, func(sb *eqvps.Sandbox) error { *sb = want; return nil })
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, &want)
	same(t, find(t, s, eqvps.SandboxFilter{ID: sb.ID}), []*eqvps.Sandbox{&want})

	if err := s.CreateSandbox(t.Context(), sb); err == nil {
		t.Error("two records share one id")
	}
}

func testSandboxFilter(t *testing.T, s Store) {
	a, b := account(t, s, "alice"), account(t, s, "bob")
	var ids []string // of alice, newest first
	for range 6 {
		ids = slices.Insert(ids, 0, sandbox(t, s, a).ID)
	}
	foreign := sandbox(t, s, b).ID
	end := func(id string) {
		if _, err := s.UpdateSandbox(t.Context(), id, func(sb *eqvps.Sandbox) error {
			sb.State, sb.EndedAt = eqvps.StateDeleted, now
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	end(ids[1])
	end(ids[4])
	yes, no := true, false
	for _, c := range []struct {
		name string
		f    eqvps.SandboxFilter
		want []string
	}{
		{"all", eqvps.SandboxFilter{}, append([]string{foreign}, ids...)},
		{"account", eqvps.SandboxFilter{AccountID: a.ID}, ids},
		{"alive", eqvps.SandboxFilter{AccountID: a.ID, Ended: &no}, []string{ids[0], ids[2], ids[3], ids[5]}},
		{"alive of all", eqvps.SandboxFilter{Ended: &no}, []string{foreign, ids[0], ids[2], ids[3], ids[5]}},
		{"ended", eqvps.SandboxFilter{AccountID: a.ID, Ended: &yes}, []string{ids[1], ids[4]}},
		{"page", eqvps.SandboxFilter{AccountID: a.ID, Limit: 2}, ids[:2]},
		{"next page", eqvps.SandboxFilter{AccountID: a.ID, Limit: 2, After: ids[1]}, ids[2:4]},
		{"last page", eqvps.SandboxFilter{AccountID: a.ID, After: ids[5]}, nil},
		{"unknown page", eqvps.SandboxFilter{AccountID: a.ID, After: "sb_unknown"}, nil},
		{"own id", eqvps.SandboxFilter{AccountID: a.ID, ID: ids[3]}, ids[3:4]},
		{"another account's id", eqvps.SandboxFilter{AccountID: a.ID, ID: foreign}, nil},
		{"hostile id", eqvps.SandboxFilter{ID: "' OR 1=1 --"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, sb := range find(t, s, c.f) {
				got = append(got, sb.ID)
			}
			same(t, got, c.want)
		})
	}
}

func testSandboxUpdate(t *testing.T, s Store) {
	a, b := account(t, s, "alice"), account(t, s, "bob")
	sb := sandbox(t, s, a)
	_, err := s.UpdateSandbox(t.Context(), "sb_unknown", func(*eqvps.Sandbox) error {
		t.Error("change was called for a record that is not there")
		return nil
	})
	wantCode(t, err, eqvps.CodeSandboxNotFound)

	boom := errors.New("boom")
	_, err = s.UpdateSandbox(t.Context(), sb.ID, func(sb *eqvps.Sandbox) error {
		sb.State = eqvps.StateDeleted
		return boom
	})
	if !errors.Is(err, boom) {
		t.Errorf("error is %v, want the one of change", err)
	}
	same(t, find(t, s, eqvps.SandboxFilter{ID: sb.ID}), []*eqvps.Sandbox{sb})

	got, err := s.UpdateSandbox(t.Context(), sb.ID, func(sb *eqvps.Sandbox) error {
		sb.ID, sb.AccountID = "sb_other", b.ID
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, sb)
	same(t, find(t, s, eqvps.SandboxFilter{AccountID: b.ID}), []*eqvps.Sandbox(nil))
}

func testSandboxPanic(t *testing.T, s Store) {
	sb := sandbox(t, s, account(t, s, "alice"))
	func() {
		defer func() { recover() }()
		s.UpdateSandbox(t.Context(), sb.ID, func(sb *eqvps.Sandbox) error {
			sb.State = eqvps.StateDeleted
			panic("boom")
		})
	}()
	same(t, find(t, s, eqvps.SandboxFilter{ID: sb.ID}), []*eqvps.Sandbox{sb})
	// The write lock was given back.
	if _, err := s.UpdateSandbox(t.Context(), sb.ID, func(*eqvps.Sandbox) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

func testSandboxConcurrent(t *testing.T, s Store) {
	const writers, each = 8, 10
	sb := sandbox(t, s, account(t, s, "alice"))
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				if _, err := s.UpdateSandbox(t.Context(), sb.ID, func(sb *eqvps.Sandbox) error {
					sb.Hourly++
					return nil
				}); err != nil {
					t.Error(err)
				}
				// Reads go on while others write.
				if _, err := s.FindSandboxes(t.Context(), eqvps.SandboxFilter{ID: sb.ID}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	same(t, find(t, s, eqvps.SandboxFilter{ID: sb.ID})[0].Hourly, sb.Hourly+writers*each)
}

// testSandboxModel compares the store with a plain slice under random calls.
func testSandboxModel(t *testing.T, s Store) {
	accounts := []*eqvps.Account{account(t, s, "a"), account(t, s, "b")}
	var model []*eqvps.Sandbox // newest first; grows from one check to the next
	rapid.Check(t, func(r *rapid.T) {
		for range rapid.IntRange(1, 5).Draw(r, "steps") {
			if len(model) == 0 || rapid.Bool().Draw(r, "create") {
				sb := newSandbox(rapid.SampledFrom(accounts).Draw(r, "account"))
				if err := s.CreateSandbox(t.Context(), sb); err != nil {
					r.Fatal(err)
				}
				model = slices.Insert(model, 0, sb)
				continue
			}
			i := rapid.IntRange(0, len(model)-1).Draw(r, "which")
			fail := rapid.Bool().Draw(r, "fail")
			next := *model[i]
			next.State = rapid.SampledFrom([]eqvps.State{eqvps.StateRunning, eqvps.StateDeleted}).Draw(r, "state")
			next.LastActive = now.Add(time.Duration(rapid.IntRange(-1e9, 1e9).Draw(r, "active")) * time.Microsecond)
			next.Image = rapid.String().Draw(r, "image")
			_, err := s.UpdateSandbox(t.Context(), next.ID, func(sb *eqvps.Sandbox) error {
				*sb = next
				if fail {
					return errors.New("no")
				}
				return nil
			})
			if (err != nil) != fail {
				r.Fatalf("update: %v", err)
			}
			if !fail {
				model[i] = &next
			}
		}
		f := eqvps.SandboxFilter{Limit: rapid.IntRange(0, 4).Draw(r, "limit")}
		if rapid.Bool().Draw(r, "by account") {
			f.AccountID = accounts[0].ID
		}
		if rapid.Bool().Draw(r, "by end") {
			ended := rapid.Bool().Draw(r, "ended")
			f.Ended = &ended
		}
		var want []string
		for _, sb := range model {
			if (f.AccountID == "" || sb.AccountID == f.AccountID) && (f.Ended == nil || sb.Ended() == *f.Ended) &&
				(f.Limit == 0 || len(want) < f.Limit) {
				want = append(want, fmt.Sprint(*sb))
			}
		}
		list, err := s.FindSandboxes(t.Context(), f)
		if err != nil {
			r.Fatal(err)
		}
		var got []string
		for _, sb := range list {
			got = append(got, fmt.Sprint(*sb))
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			r.Fatalf("filter %+v: got\n%s\nwant\n%s", f, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}
