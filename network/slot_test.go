package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
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

// TestSlotWhoseRecordIsGone: an index that was given away is another's, whatever
// its first owner still believes.
func TestSlotWhoseRecordIsGone(t *testing.T) {
	dir := t.TempDir()
	shared := func(c *Config) { c.RunDir = dir }
	mine, theirs := newManager(t, shared), newManager(t, shared, func(c *Config) { c.Owner = "another" })
	s := newSlot(t, mine)
	// Somebody tidies up by hand.
	if err := mine.tearDown(s.rec); err != nil {
		t.Fatal(err)
	}
	other := newSlot(t, theirs)
	if other.Index() != s.Index() {
		t.Fatalf("the slots are %d and %d: this proves nothing", s.Index(), other.Index())
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	g := newGuest(t, other)
	if _, _, err := greeting(g.path, publicAddr+":80"); err != nil {
		t.Errorf("the slot of another was taken away: %v", err)
	}
}
