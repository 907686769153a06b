package control_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/control"
	"github.com/eqvps/eqvps/keyring"
)

func (r *rig) put(name, value string) {
	r.t.Helper()
	if _, err := r.PutSecret(r.ctx, name, value); err != nil {
		r.t.Fatal(err)
	}
}

// envOf returns the variables of a sandbox's machine.
func (r *rig) envOf(id string) map[string]string {
	m := r.host.machine(id)
	m.set.Lock()
	defer m.set.Unlock()
	return m.env
}

// other returns the context of another account.
func (r *rig) other(name string) context.Context {
	r.t.Helper()
	a := eqvps.NewAccount(name, time.Now())
	if err := r.store.CreateAccount(context.Background(), a); err != nil {
		r.t.Fatal(err)
	}
	return eqvps.WithPrincipal(context.Background(), eqvps.Principal{AccountID: a.ID, TokenID: "tok_x"})
}

// TestSecretsOnlyWhenAskedFor: a sandbox gets what its creation names, of its
// own account.
func TestSecretsOnlyWhenAskedFor(t *testing.T) {
	r := newRig(t)
	bob := r.other("bob")
	r.put("A", "a-value")
	r.put("B", "b\xff\n")
	if _, err := r.PutSecret(bob, "A", "of bob"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		req  eqvps.CreateSandbox
		want map[string]string
		code eqvps.Code
		msg  string
	}{
		{"none", eqvps.CreateSandbox{Env: eqvps.Env{"X": "1"}}, map[string]string{"X": "1"}, "", ""},
		{"one", eqvps.CreateSandbox{Secrets: []string{"B", "B"}}, map[string]string{"B": "b\xff\n"}, "", ""},
		{"all", eqvps.CreateSandbox{Secrets: []string{"*"}, Env: eqvps.Env{"A": "own", "X": ""}}, map[string]string{"A": "own", "B": "b\xff\n", "X": ""}, "", ""},
		{"absent", eqvps.CreateSandbox{Secrets: []string{"A", "ABSENT"}}, nil, eqvps.CodeInvalidValue, "ABSENT"},
		{"no name", eqvps.CreateSandbox{Secrets: []string{"A=canary"}}, nil, eqvps.CodeInvalidValue, `"A"`},
		{"all and one", eqvps.CreateSandbox{Secrets: []string{"*", "A"}}, nil, eqvps.CodeInvalidValue, "stands for all"},
		{"too many names", eqvps.CreateSandbox{Secrets: make([]string, eqvps.MaxSecrets+1)}, nil, eqvps.CodeInvalidValue, "65 names"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sb, err := r.Create(r.ctx, c.req)
			wantCode(t, err, c.code)
			if err != nil {
				if !strings.Contains(err.Error(), c.msg) || strings.Contains(err.Error(), "canary") {
					t.Errorf("error is %v", err)
				}
				return
			}
			if diff := cmp.Diff(c.want, r.envOf(sb.ID)); diff != "" {
				t.Errorf("variables (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(eqvps.EnvKeys(c.want), sb.EnvKeys); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
		})
	}
	// Together they may be too large.
	for i := range 5 {
		r.put(fmt.Sprintf("LARGE%d", i), strings.Repeat("x", eqvps.MaxEnvValueBytes))
	}
	_, err := r.Create(r.ctx, eqvps.CreateSandbox{Secrets: []string{"*"}})
	wantCode(t, err, eqvps.CodeTooLarge)

	list, err := r.ListSecrets(bob)
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	if err := r.DeleteSecret(bob, "A"); err != nil {
		t.Fatal(err)
	}
	wantCode(t, r.DeleteSecret(bob, "A"), eqvps.CodeSecretNotFound)
	wantCode(t, r.DeleteSecret(bob, "B"), eqvps.CodeSecretNotFound)
	_, err = r.Create(bob, eqvps.CreateSandbox{Secrets: []string{"A"}})
	wantCode(t, err, eqvps.CodeInvalidValue)
	_, err = r.PutSecret(r.ctx, "A", "canary\x00")
	if wantCode(t, err, eqvps.CodeInvalidValue); strings.Contains(err.Error(), "canary") {
		t.Errorf("the error shows the value: %v", err)
	}
}

// TestSecretsAreSealed: the values lie nowhere in clear, and a sealed one is of
// no use in another's place.
func TestSecretsAreSealed(t *testing.T) {
	r := newRig(t)
	r.put("A", "canary-5d41402a")
	sb, err := r.Create(r.ctx, eqvps.CreateSandbox{Secrets: []string{"A"}, Env: eqvps.Env{"X": "canary-5d41402a"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.SetEnv(r.ctx, sb.ID, eqvps.EnvChange{Set: eqvps.Env{"Y": "canary-5d41402a"}}); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Dir(r.path) + "/*")
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte("canary-5d41402a")) {
			t.Errorf("a value lies in clear in %s", f)
		}
	}
	list, err := r.ListSecrets(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	moved := *list[0]
	moved.Name = "B"
	if _, err := r.store.PutSecret(t.Context(), &moved); err != nil {
		t.Fatal(err)
	}
	_, err = r.Create(r.ctx, eqvps.CreateSandbox{Secrets: []string{"B"}})
	if wantCode(t, err, eqvps.CodeInvalidValue); !strings.Contains(err.Error(), "B cannot be read any more; set it again") {
		t.Errorf("error is %v", err)
	}
}

func TestSetEnv(t *testing.T) {
	r := newRig(t)
	sb, err := r.Create(r.ctx, eqvps.CreateSandbox{Env: eqvps.Env{"A": "1", "B": "2"}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.SetEnv(r.ctx, sb.ID, eqvps.EnvChange{Set: eqvps.Env{"C": "3", "A": "new"}, Remove: []string{"B", "ABSENT"}})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"A": "new", "C": "3"}
	if diff := cmp.Diff(want, r.envOf(sb.ID)); diff != "" {
		t.Errorf("variables (-want +got):\n%s", diff)
	}
	for _, keys := range [][]string{got.EnvKeys, r.get(sb.ID).EnvKeys} {
		if diff := cmp.Diff([]string{"A", "C"}, keys); diff != "" {
			t.Errorf("names (-want +got):\n%s", diff)
		}
	}
	tooMany := eqvps.Env{}
	for i := range eqvps.MaxEnvVars - 1 {
		tooMany[fmt.Sprintf("V%d", i)] = ""
	}
	for what, c := range map[string]struct {
		eqvps.EnvChange
		code eqvps.Code
	}{
		"nothing":  {eqvps.EnvChange{}, eqvps.CodeInvalidRequest},
		"both":     {eqvps.EnvChange{Set: eqvps.Env{"A": "canary"}, Remove: []string{"A"}}, eqvps.CodeInvalidRequest},
		"bad name": {eqvps.EnvChange{Remove: []string{"A-B"}}, eqvps.CodeInvalidValue},
		"NUL":      {eqvps.EnvChange{Set: eqvps.Env{"A": "canary\x00"}}, eqvps.CodeInvalidValue},
		"too many": {eqvps.EnvChange{Set: tooMany}, eqvps.CodeInvalidValue},
	} {
		_, err := r.SetEnv(r.ctx, sb.ID, c.EnvChange)
		if wantCode(t, err, c.code); strings.Contains(fmt.Sprint(err), "canary") {
			t.Errorf("%s: the error shows a value: %v", what, err)
		}
	}
	if diff := cmp.Diff(want, r.envOf(sb.ID)); diff != "" {
		t.Errorf("after changes that were refused (-want +got):\n%s", diff)
	}
	_, err = r.SetEnv(r.other("bob"), sb.ID, eqvps.EnvChange{Remove: []string{"A"}})
	wantCode(t, err, eqvps.CodeSandboxNotFound)

	// Record and guest agree, whoever comes first.
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			c := eqvps.EnvChange{Set: eqvps.Env{"A": ""}}
			if i%2 == 0 {
				c = eqvps.EnvChange{Remove: []string{"A"}}
			}
			if _, err := r.SetEnv(r.ctx, sb.ID, c); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if diff := cmp.Diff(eqvps.EnvKeys(r.envOf(sb.ID)), r.get(sb.ID).EnvKeys); diff != "" {
		t.Errorf("guest and record differ (-guest +record):\n%s", diff)
	}

	if _, err := r.Delete(r.ctx, sb.ID); err != nil {
		t.Fatal(err)
	}
	_, err = r.SetEnv(r.ctx, sb.ID, eqvps.EnvChange{Remove: []string{"A"}})
	wantCode(t, err, eqvps.CodeSandboxEnded)
}

// TestRotateKeys: nothing is lost while secrets are set and used at the same
// time, and afterwards the new key alone opens everything.
func TestRotateKeys(t *testing.T) {
	r := newRig(t)
	for i := range 10 {
		r.put(fmt.Sprintf("S%d", i), "first")
	}
	lasting, err := r.Create(r.ctx, eqvps.CreateSandbox{Mode: eqvps.Persistent, Env: eqvps.Env{"A": "1"}})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 10 {
				name := fmt.Sprintf("S%d", i)
				if _, err := r.PutSecret(r.ctx, name, "second"); err != nil {
					t.Error(err)
				}
				if _, err := r.Create(r.ctx, eqvps.CreateSandbox{Secrets: []string{name}}); err != nil {
					t.Error(err)
				}
				if _, err := r.SetEnv(r.ctx, lasting.ID, eqvps.EnvChange{Set: eqvps.Env{name: "set"}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 5 {
		done, err := r.RotateKeys(r.ctx)
		if diff := cmp.Diff(eqvps.Rotation{Resealed: 11, Retired: 1}, done); diff != "" || err != nil {
			t.Errorf("rotation (-want +got):\n%s%v", diff, err)
		}
	}
	wg.Wait()
	r.stop()
	r.start() // what this process still knows is gone
	sb, err := r.Create(r.ctx, eqvps.CreateSandbox{Secrets: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	env := r.envOf(sb.ID)
	if len(env) != 10 || env["S0"] != "second" || env["S9"] != "first" {
		t.Errorf("after the rotation: %q", env)
	}
	if _, err := r.Resume(r.ctx, lasting.ID, true); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"A": "1", "S0": "set", "S1": "set", "S2": "set", "S3": "set"}
	if diff := cmp.Diff(want, r.envOf(lasting.ID)); diff != "" {
		t.Errorf("variables of a persistent sandbox (-want +got):\n%s", diff)
	}
	_, err = r.RotateKeys(r.other("bob"))
	wantCode(t, err, eqvps.CodeForbidden)
}

// TestInterruptedRotation: it breaks after the new key is there. Everything
// opens, and the next one completes it.
func TestInterruptedRotation(t *testing.T) {
	r := newRig(t)
	r.put("A", "a")
	ring := filepath.Join(filepath.Dir(r.path), "keyring.json")
	before, err := os.ReadFile(ring)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.store.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RotateKeys(r.ctx); err == nil {
		t.Fatal("it went through without a store")
	}
	after, err := os.ReadFile(ring)
	if err != nil || bytes.Equal(before, after) {
		t.Fatal("there is no new key", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.put("B", "b")
	if done, err := r.RotateKeys(r.ctx); done != (eqvps.Rotation{Resealed: 2, Retired: 2}) || err != nil {
		t.Errorf("%+v, %v", done, err)
	}
	sb, err := r.Create(r.ctx, eqvps.CreateSandbox{Secrets: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"A": "a", "B": "b"}, r.envOf(sb.ID)); diff != "" {
		t.Error(diff)
	}
}

// TestLostKey: without the key file the server starts, tells which secret
// cannot be read, and takes a new value for it.
func TestLostKey(t *testing.T) {
	r := newRig(t)
	r.put("A", "a")
	r.put("B", "b")
	r.stop()
	if err := os.Remove(filepath.Join(filepath.Dir(r.path), "keyring.json")); err != nil {
		t.Fatal(err)
	}
	r.start()
	_, err := r.Create(r.ctx, eqvps.CreateSandbox{Secrets: []string{"A"}})
	wantCode(t, err, eqvps.CodeInvalidValue)
	r.put("A", "again")
	// A rotation passes by what nothing opens.
	if done, err := r.RotateKeys(r.ctx); done != (eqvps.Rotation{Resealed: 1, Retired: 1}) || err != nil {
		t.Errorf("%+v, %v", done, err)
	}
	if _, err := r.Create(r.ctx, eqvps.CreateSandbox{Secrets: []string{"A"}}); err != nil {
		t.Error(err)
	}
	if err := r.DeleteSecret(r.ctx, "B"); err != nil {
		t.Error(err)
	}
}

// lateStore lets something happen between the sealing of a secret and the
// storing of it.
type lateStore struct {
	control.Store
	before func()
}

func (s lateStore) PutSecret(ctx context.Context, sec *eqvps.Secret) (*eqvps.Secret, error) {
	s.before()
	return s.Store.PutSecret(ctx, sec)
}

// TestRotationWaitsForWhatIsBeingSealed: a secret that was sealed with the old
// key, but is not stored yet, would not be sealed anew, and nothing could open
// it after the next start.
func TestRotationWaitsForWhatIsBeingSealed(t *testing.T) {
	r := newRig(t)
	keys, err := keyring.Open(filepath.Join(filepath.Dir(r.path), "keyring.json"))
	if err != nil {
		t.Fatal(err)
	}
	rotated := make(chan error, 1)
	var s *control.Service
	s = control.New(control.Config{Store: lateStore{r.store, func() {
		go func() {
			_, err := s.RotateKeys(r.ctx)
			rotated <- err
		}()
		// It must not come to its end now, so there is nothing to wait for. Without
		// the lock it takes a few milliseconds.
		select {
		case err := <-rotated:
			rotated <- err
		case <-time.After(200 * time.Millisecond):
		}
	}}, Host: r.host, Tariffs: eqvps.DefaultTariffs, Keys: keys, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { s.Close() })
	if _, err := s.PutSecret(r.ctx, "A", "a"); err != nil {
		t.Fatal(err)
	}
	if err := <-rotated; err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.start()
	if _, err := r.Create(r.ctx, eqvps.CreateSandbox{Secrets: []string{"A"}}); err != nil {
		t.Error(err)
	}
}
