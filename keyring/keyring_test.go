package keyring_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps/keyring"
)

func open(t *testing.T, path string) *keyring.Ring {
	t.Helper()
	r, err := keyring.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func seal(t *testing.T, r *keyring.Ring, plain string) []byte {
	t.Helper()
	b, err := r.Seal([]byte(plain), []byte("context"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func opens(t *testing.T, r *keyring.Ring, sealed []byte, plain string) {
	t.Helper()
	b, err := r.Open(sealed, []byte("context"))
	if err != nil || string(b) != plain {
		t.Errorf("opened as %q, %v, want %q", b, err, plain)
	}
}

func TestSealAndOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keyring.json")
	r := open(t, path)
	if again := open(t, path); !r.Made() || again.Made() {
		t.Error("it is not told whether the file was made")
	}
	for _, plain := range []string{"", "canary", string([]byte{0, 255, 10}), strings.Repeat("x", 300<<10)} {
		sealed := seal(t, r, plain)
		if plain != "" && bytes.Contains(sealed, []byte(plain)) {
			t.Error("it lies in clear")
		}
		if bytes.Equal(sealed, seal(t, r, plain)) {
			t.Error("twice the same")
		}
		opens(t, open(t, path), sealed, plain)
		if _, err := r.Open(sealed, []byte("another")); err == nil {
			t.Error("it opens in another context")
		}
		sealed[len(sealed)-1] ^= 1
		if _, err := r.Open(sealed, []byte("context")); err == nil {
			t.Error("it opens after a change")
		}
	}
	for _, bad := range [][]byte{nil, {0}, []byte("no such thing")} {
		if _, err := r.Open(bad, nil); err == nil {
			t.Errorf("%q opens", bad)
		}
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the file has the mode %v, %v", st.Mode(), err)
	}
}

// TestRotation: at every step a process that starts from the file opens what
// any earlier one has sealed.
func TestRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keyring.json")
	r := open(t, path)
	first := seal(t, r, "first")
	// Left by a crash before the rename.
	if err := os.WriteFile(path+".new", []byte("half"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.Rotate(); err != nil {
		t.Fatal(err)
	}
	second := seal(t, r, "second")
	for _, r := range []*keyring.Ring{r, open(t, path)} {
		opens(t, r, first, "first")
		opens(t, r, second, "second")
	}
	if n, err := r.Retire(); n != 1 || err != nil {
		t.Fatalf("%d keys retired, %v", n, err)
	}
	third := seal(t, r, "third")
	// This process may have read the first one before it was sealed anew.
	opens(t, r, first, "first")
	after := open(t, path)
	opens(t, after, second, "second")
	opens(t, after, third, "third")
	if _, err := after.Open(first, []byte("context")); err == nil {
		t.Error("a retired key still opens")
	}
	if n, err := after.Retire(); n != 0 || err != nil {
		t.Errorf("%d keys retired once more, %v", n, err)
	}
	files, err := filepath.Glob(filepath.Dir(path) + "/*")
	if diff := cmp.Diff([]string{path}, files); diff != "" || err != nil {
		t.Errorf("files (-want +got):\n%s%v", diff, err)
	}
}

// TestFailedWrite: a ring that cannot be written goes on as it was.
func TestFailedWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keyring.json")
	r := open(t, path)
	if err := os.MkdirAll(path+".new/in the way", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.Rotate(); err == nil {
		t.Fatal("it was written")
	}
	sealed := seal(t, r, "x")
	opens(t, open(t, path), sealed, "x")
}

func TestConcurrent(t *testing.T) {
	r := open(t, filepath.Join(t.TempDir(), "keyring.json"))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				opens(t, r, seal(t, r, "x"), "x")
			}
		})
	}
	for range 3 {
		if err := r.Rotate(); err != nil {
			t.Error(err)
		}
		if _, err := r.Retire(); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(path string, data []byte) error
		want   string
	}{
		{"readable by others", func(path string, _ []byte) error { return os.Chmod(path, 0o604) }, "mode 0604); run `chmod 600"},
		{"readable by the group", func(path string, _ []byte) error { return os.Chmod(path, 0o640) }, "chmod 600"},
		{"another's", func(path string, _ []byte) error { return os.Chown(path, 12345, 12345) }, "chown 0"},
		{"cut", func(path string, d []byte) error { return os.WriteFile(path, d[:len(d)/2], 0o600) }, "is damaged"},
		{"empty", func(path string, _ []byte) error { return os.WriteFile(path, nil, 0o600) }, "is damaged"},
		{"no keys", func(path string, _ []byte) error { return os.WriteFile(path, []byte("{}"), 0o600) }, "is damaged"},
		{"another key", func(path string, d []byte) error {
			i := bytes.Index(d, []byte(`"value"`)) + 30
			d[i] = 'A' + (d[i]+1)%2
			return os.WriteFile(path, d, 0o600)
		}, "does not match its checksum"},
		{"a folder", func(path string, _ []byte) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Mkdir(path, 0o700)
		}, "not a regular file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "keyring.json")
			open(t, path)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.change(path, bytes.Clone(data)); err != nil {
				t.Fatal(err)
			}
			_, err = keyring.Open(path)
			if err == nil {
				t.Fatal("it was opened")
			}
			msg := err.Error()
			if !strings.Contains(msg, c.want) || !strings.Contains(msg, path) || strings.Contains(msg, "\n") {
				t.Errorf("error is %q, want one line with the path and %q", msg, c.want)
			}
			// A few bytes of a key are too many.
			i := bytes.Index(data, []byte(`"value"`)) + 20
			if strings.Contains(msg, string(data[i:i+8])) {
				t.Errorf("the error quotes a key: %s", msg)
			}
		})
	}
}
