package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// traces is everything that slots put on a host.
func traces(t *testing.T, m *Manager) []string {
	t.Helper()
	var found []string
	links, err := m.links.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		found = append(found, "link "+l.Attrs().Name)
	}
	for _, pattern := range []string{namespaceDir + "/*", m.cfg.RunDir + "/*", m.slotsDir() + "/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if filepath.Base(f) != "lock" && f != m.slotsDir() {
				found = append(found, "file "+f)
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if mountpoint := strings.Fields(line)[4]; strings.HasPrefix(mountpoint, namespaceDir+"/") {
			found = append(found, "mount "+mountpoint)
		}
	}
	rules, err := nft("list", "ruleset")
	if err != nil {
		t.Fatal(err)
	}
	found = append(found, "rules "+rules, fmt.Sprint("forwarding ", forwards(forwardingOption("wan0"))))
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		// A thread that ended meanwhile cannot be read.
		if ns, err := os.Readlink(thread); err == nil && ns != home {
			found = append(found, "stray thread "+thread)
		}
	}
	return found
}

func wantTraces(t *testing.T, m *Manager, want []string) {
	t.Helper()
	if diff := cmp.Diff(want, traces(t, m)); diff != "" {
		t.Errorf("left on the host (-before +after):\n%s", diff)
	}
}

func TestSlot(t *testing.T) {
	m := newManager(t, func(c *Config) { c.TapOwner = func(index int) (uid, gid int) { return 1000 + index, 2000 } })
	before := traces(t, m)
	s := newSlot(t, m)
	if !pinned(s.Namespace()) {
		t.Errorf("%s is no namespace", s.Namespace())
	}
	err := inNamespace(enterNamed(s.Namespace()), func() error {
		links, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer links.Close()
		tap, err := links.LinkByName(s.Tap())
		if err != nil {
			return err
		}
		got := tap.(*netlink.Tuntap)
		if got.HardwareAddr.String() != GatewayMAC || got.MTU != labMTU || got.Owner != 1000 || got.Group != 2000 || got.NonPersist {
			t.Errorf("the tap is %+v", got)
		}
		if got.Flags&netlink.TUNTAP_MULTI_QUEUE != 0 {
			t.Error("the tap has several queues")
		}
		all, err := links.AddrList(nil, netlink.FAMILY_V6)
		if err == nil && len(all) > 0 {
			t.Errorf("the slot has IPv6 addresses: %v", all)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if again, err := m.Open(s.Index()); again != s || err != nil {
		t.Errorf("opening an open slot gave another: %v, %v", again, err)
	}
	for range 2 {
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wantTraces(t, m, before)
}

func TestParallelSlotsLeaveNothing(t *testing.T) {
	m := newManager(t)
	before := traces(t, m)
	work := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range work {
				s, err := m.Create(t.Context())
				if err != nil {
					t.Error(err)
					continue
				}
				if err := s.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 20 {
		work <- i
	}
	close(work)
	wg.Wait()
	wantTraces(t, m, before)
}

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

func TestServersWithDifferentRangesDoNotCollide(t *testing.T) {
	dir := t.TempDir()
	a := newManager(t, func(c *Config) { c.RunDir, c.Owner, c.Range = dir, "a", netip.MustParsePrefix("100.127.0.0/29") })
	b := newManager(t, func(c *Config) { c.RunDir, c.Owner, c.Range = dir, "b", netip.MustParsePrefix("100.127.0.4/30") })
	c := newManager(t, func(c *Config) { c.RunDir, c.Owner, c.Range = dir, "c", netip.MustParsePrefix("100.127.0.0/28") })
	s := newSlot(t, b) // index 0, but the second network of the others' ranges
	networks := []netip.Prefix{s.rec.Network}
	for range 2 {
		networks = append(networks, newSlot(t, c).rec.Network)
	}
	for i, p := range networks {
		for _, q := range networks[:i] {
			if p.Overlaps(q) {
				t.Errorf("%s overlaps %s", p, q)
			}
		}
	}
	if _, err := a.Create(t.Context()); !errors.Is(err, ErrFull) {
		t.Errorf("a full range gave %v, want ErrFull", err)
	}
}

func TestFlushedHostRulesComeBack(t *testing.T) {
	m := newManager(t)
	g := newGuest(t, newSlot(t, m))
	if out, err := nft("flush", "ruleset"); err != nil {
		t.Fatal(out, err)
	}
	newSlot(t, m)
	if _, _, err := greeting(g.path, publicAddr+":80"); err != nil {
		t.Error(err)
	}
}

func TestForwardingIsLeftAsFound(t *testing.T) {
	m := newManager(t)
	guarded := func() bool {
		out, err := nft("list", "table", "inet", tableName)
		if err != nil {
			t.Fatal(out, err)
		}
		return strings.Contains(out, `iifname "wan0" ct state new drop`)
	}
	s := newSlot(t, m)
	if !forwards(forwardingOption("wan0")) || !guarded() {
		t.Error("want the uplink to forward for slots only")
	}
	if forwards("ipv4/ip_forward") || forwards(forwardingOption("lo")) {
		t.Error("other devices forward as well")
	}
	// Now the operator makes the host a router for reasons of his own.
	if err := setOption("ipv4/ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := setOption("ipv4/ip_forward", "0"); err != nil {
			t.Error(err)
		}
	})
	other := newSlot(t, m)
	if guarded() {
		t.Error("the host's own routing is still blocked")
	}
	for _, s := range []*Slot{s, other} {
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !forwards(forwardingOption("wan0")) {
		t.Error("the operator's forwarding was switched off")
	}
}

func TestNewExplainsWhatToChange(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg  Config
		want string
	}{
		"no owner":          {Config{}, "no owner"},
		"public range":      {Config{Owner: "a", Range: netip.MustParsePrefix("198.51.100.0/24")}, "configure one inside"},
		"IPv6 range":        {Config{Owner: "a", Range: netip.MustParsePrefix("fd00::/64")}, "configure an IPv4 prefix"},
		"tiny range":        {Config{Owner: "a", Range: netip.MustParsePrefix("10.9.0.0/31")}, "configure an IPv4 prefix"},
		"loopback resolver": {Config{Owner: "a", Resolvers: []netip.Addr{netip.MustParseAddr("127.0.0.53")}}, "name an IPv4 address"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.cfg.RunDir = t.TempDir()
			if _, err := New(tc.cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
	t.Run("range in use", func(t *testing.T) {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		addr, err := netlink.ParseAddr("10.77.0.1/32")
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.AddrAdd(lo, addr); err != nil {
			t.Fatal(err)
		}
		defer netlink.AddrDel(lo, addr)
		_, err = New(Config{Owner: "a", RunDir: t.TempDir(), Range: netip.MustParsePrefix("10.77.0.0/16")})
		if err == nil || !strings.Contains(err.Error(), "overlaps") {
			t.Errorf("got %v, want an error about the overlap", err)
		}
	})
}

func TestCreateStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	m := newManager(t, func(c *Config) {
		c.Step = func(label string) error {
			if label == "write host rules" {
				cancel()
			}
			return nil
		}
	})
	before := traces(t, m)
	if _, err := m.Create(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want a cancellation", err)
	}
	wantTraces(t, m, before)
}

// A process left in the namespace keeps it alive, but without a network.
func TestCloseCutsOffALeftProcess(t *testing.T) {
	m := newManager(t)
	s := newSlot(t, m)
	g := newGuest(t, s) // its open tap is such a process
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := dialIn(g.path, "udp4", publicAddr+":9000"); err != nil {
		t.Fatal(err)
	}
	if err := knock(g.path, publicAddr+":80"); err == nil || errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("got %v, want silence", err)
	}
}

func BenchmarkSlot(b *testing.B) {
	m, err := New(Config{Owner: b.Name(), RunDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	anchor, err := m.Create(b.Context()) // so that the host stays prepared
	if err != nil {
		b.Fatal(err)
	}
	defer anchor.Close(context.Background())
	create := func() *Slot {
		s, err := m.Create(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	shut := func(s *Slot) {
		if err := s.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("create", func(b *testing.B) {
		for b.Loop() {
			s := create()
			b.StopTimer()
			shut(s)
			b.StartTimer()
		}
	})
	b.Run("close", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			s := create()
			b.StartTimer()
			shut(s)
		}
	})
}
