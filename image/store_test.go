package image

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGet(t *testing.T) {
	f := newFakeHost(t)
	s := f.store(filepath.Join(t.TempDir(), "images"))
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("a store that is not there lists %v, %v", list, err)
	}
	for _, ref := range []string{"default", "", "..", ".", "img_", "img_0123", "img_../..", "a/b", ".lock"} {
		if _, err := s.Get(ref); !errors.Is(err, ErrNotFound) {
			t.Errorf("Get(%q) = %v, want ErrNotFound", ref, err)
		}
	}
	img, err := s.Build(t.Context(), f.recipe, BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"default", img.ID, img.ID[:12], img.ID[:len(idPrefix)+minIDDigits]} {
		got, err := s.Get(ref)
		if err != nil {
			t.Errorf("Get(%q): %v", ref, err)
			continue
		}
		if diff := cmp.Diff(img, got); diff != "" {
			t.Errorf("Get(%q):\n%s", ref, diff)
		}
	}
	if _, err := s.Get(img.ID[:len(idPrefix)+minIDDigits-1]); !errors.Is(err, ErrNotFound) {
		t.Errorf("three digits: %v, want ErrNotFound", err)
	}
	f.recipe.Name = "other"
	f.recipe.Debian.Packages = nil
	other, err := s.Build(t.Context(), f.recipe, BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if list, err := s.List(); err != nil || len(list) != 2 {
		t.Errorf("List = %v, %v; want two", list, err)
	}
	if err := s.Remove("default"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get("default"); !errors.Is(err, ErrNotFound) {
		t.Errorf("after Remove: %v, want ErrNotFound", err)
	}
	if diff := cmp.Diff([]string{other.ID, "other"}, contents(t, s)); diff != "" {
		t.Errorf("store (-want +got):\n%s", diff)
	}
	if err := s.Remove("default"); !errors.Is(err, ErrNotFound) {
		t.Errorf("removing twice: %v, want ErrNotFound", err)
	}
}

func TestDamage(t *testing.T) {
	for _, c := range []struct {
		name   string
		damage func(dir string) error
		quiet  bool // only Verify can see it
	}{
		{"file gone", func(d string) error { return os.Remove(filepath.Join(d, rootFSFile)) }, false},
		{"file cut", func(d string) error { return os.Truncate(filepath.Join(d, kernelFile), 2) }, false},
		{"file is a link", func(d string) error {
			os.Remove(filepath.Join(d, kernelFile))
			return os.Symlink("/etc/passwd", filepath.Join(d, kernelFile))
		}, false},
		{"module gone", func(d string) error { return os.Remove(filepath.Join(d, modulesDir, "00-virtio.ko")) }, false},
		{"manifest gone", func(d string) error { return os.Remove(filepath.Join(d, manifestFile)) }, false},
		{"manifest cut", func(d string) error { return os.Truncate(filepath.Join(d, manifestFile), 100) }, false},
		{"manifest lists nothing", func(d string) error {
			return os.WriteFile(filepath.Join(d, manifestFile), []byte(`{"id":"`+filepath.Base(d)+`"}`), 0o644)
		}, false},
		{"byte changed", func(d string) error { return os.WriteFile(filepath.Join(d, kernelFile), []byte("kernal"), 0o644) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFakeHost(t)
			s := f.store(t.TempDir())
			img, err := s.Build(t.Context(), f.recipe, BuildOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.damage(img.Dir); err != nil {
				t.Fatal(err)
			}
			if err := s.Verify("default"); !errors.Is(err, ErrDamaged) || strings.Contains(err.Error(), s.dir) {
				t.Errorf("Verify = %v, want ErrDamaged without the host's paths", err)
			}
			if c.quiet {
				return
			}
			if _, err := s.Get("default"); !errors.Is(err, ErrDamaged) {
				t.Errorf("Get = %v, want ErrDamaged", err)
			}
			if list, err := s.List(); err != nil || len(list) != 0 {
				t.Errorf("List = %v, %v; want the damaged one left out", list, err)
			}
			again, err := s.Build(t.Context(), f.recipe, BuildOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Verify(again.ID); err != nil || again.ID != img.ID {
				t.Errorf("after a new build: %v", err)
			}
			if diff := cmp.Diff([]string{"default", img.ID}, contents(t, s)); diff != "" {
				t.Errorf("store (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRemoveDamaged(t *testing.T) {
	f := newFakeHost(t)
	s := f.store(t.TempDir())
	img, err := s.Build(t.Context(), f.recipe, BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(img.Dir, manifestFile)); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove("default"); err != nil {
		t.Error(err)
	}
	if left := contents(t, s); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}
