package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
)

func secret(t *testing.T, s Store, a *eqvps.Account, name, sealed string, at time.Time) *eqvps.Secret {
	t.Helper()
	kept, err := s.PutSecret(t.Context(), &eqvps.Secret{
		AccountID: a.ID, Name: name, Sealed: []byte(sealed), CreatedAt: at, UpdatedAt: at,
	})
	if err != nil {
		t.Fatal(err)
	}
	return kept
}

func secrets(t *testing.T, s Store, a *eqvps.Account) []*eqvps.Secret {
	t.Helper()
	list, err := s.FindSecrets(t.Context(), a.ID)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func testSecrets(t *testing.T, s Store) {
	a, b := account(t, s, "alice"), account(t, s, "bob")
	same(t, secrets(t, s, a), []*eqvps.Secret(nil))
	second := secret(t, s, a, "B", "\x00\xff", now)
	first := secret(t, s, a, "A", "1", now)
	foreign := secret(t, s, b, "B", "other", now)
	same(t, first, &eqvps.Secret{AccountID: a.ID, Name: "A", Sealed: []byte("1"), CreatedAt: now, UpdatedAt: now})
	same(t, secrets(t, s, a), []*eqvps.Secret{first, second})

	// Replacing one leaves its time of creation, and everybody else's.
	later := now.Add(time.Minute)
	second = secret(t, s, a, "B", "2", later)
	same(t, second, &eqvps.Secret{AccountID: a.ID, Name: "B", Sealed: []byte("2"), CreatedAt: now, UpdatedAt: later})
	same(t, secrets(t, s, a), []*eqvps.Secret{first, second})
	same(t, secrets(t, s, b), []*eqvps.Secret{foreign})

	wantCode(t, s.DeleteSecret(t.Context(), b.ID, "A"), eqvps.CodeSecretNotFound)
	if err := s.DeleteSecret(t.Context(), a.ID, "A"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, s.DeleteSecret(t.Context(), a.ID, "A"), eqvps.CodeSecretNotFound)
	same(t, secrets(t, s, a), []*eqvps.Secret{second})

	if _, err := s.PutSecret(t.Context(), &eqvps.Secret{AccountID: "acc_none", Name: "A", Sealed: []byte{1}, CreatedAt: now, UpdatedAt: now}); err == nil {
		t.Error("a secret of an account that does not exist was kept")
	}
}

func testSecretLimit(t *testing.T, s Store) {
	a := account(t, s, "alice")
	for i := range eqvps.MaxSecrets {
		secret(t, s, a, fmt.Sprintf("S%d", i), "x", now)
	}
	_, err := s.PutSecret(t.Context(), &eqvps.Secret{AccountID: a.ID, Name: "MORE", Sealed: []byte("x"), CreatedAt: now, UpdatedAt: now})
	wantCode(t, err, eqvps.CodeInvalidValue)
	secret(t, s, a, "S0", "y", now) // replacing one adds none
	if n := len(secrets(t, s, a)); n != eqvps.MaxSecrets {
		t.Errorf("the account has %d secrets, want %d", n, eqvps.MaxSecrets)
	}
}

func testReseal(t *testing.T, s Store) {
	// More than a store may want to change at once.
	want := map[string]string{}
	var accounts []*eqvps.Account
	for i := range 4 {
		a := account(t, s, fmt.Sprint("a", i))
		accounts = append(accounts, a)
		for j := range 60 {
			name := fmt.Sprintf("S%d", j)
			secret(t, s, a, name, "old "+name, now)
			want[string(eqvps.SecretContext(a.ID, name))] = "old " + name
		}
	}
	// What persistent sandboxes need to come back is sealed as well.
	persistent := sandbox(t, s, accounts[0])
	sandbox(t, s, accounts[0]) // has nothing sealed
	if _, err := s.UpdateSandbox(t.Context(), persistent.ID, func(sb *eqvps.Sandbox) error { sb.Sealed = []byte("old vault"); return nil }); err != nil {
		t.Fatal(err)
	}
	want[string(eqvps.SandboxContext(persistent.ID))] = "old vault"
	sb := sandbox(t, s, accounts[0])
	sandbox(t, s, accounts[1]) // has nothing sealed
	if _, err := s.UpdateSandbox(t.Context(), sb.ID, func(sb *eqvps.Sandbox) error {
		sb.Sealed = []byte("old vault")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want[string(eqvps.SandboxContext(sb.ID))] = "old vault"
	got := map[string]string{}
	n, err := s.Reseal(t.Context(), func(sealed, context []byte) ([]byte, error) {
		got[string(context)] = string(sealed)
		return append([]byte("new "), bytes.TrimPrefix(sealed, []byte("old "))...), nil
	})
	if err != nil || n != len(want) {
		t.Fatalf("%d values resealed, %v; want %d", n, err, len(want))
	}
	same(t, got, want)
	for _, a := range accounts {
		for _, sec := range secrets(t, s, a) {
			same(t, string(sec.Sealed), "new "+sec.Name)
			same(t, sec.UpdatedAt, now)
		}
	}
	same(t, string(find(t, s, eqvps.SandboxFilter{ID: persistent.ID})[0].Sealed), "new vault")
	same(t, string(find(t, s, eqvps.SandboxFilter{ID: sb.ID})[0].Sealed), "new vault")

	boom := errors.New("boom")
	if _, err := s.Reseal(t.Context(), func([]byte, []byte) ([]byte, error) { return nil, boom }); !errors.Is(err, boom) {
		t.Errorf("error is %v, want the one of reseal", err)
	}
	same(t, string(secrets(t, s, accounts[0])[0].Sealed), "new S0")
}
