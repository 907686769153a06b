package network

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestHostResolvers(t *testing.T) {
	const stub = "# made by systemd-resolved\nnameserver 127.0.0.53\noptions edns0\n"
	for name, tc := range map[string]struct {
		files []string // an empty text: no such file
		want  string
	}{
		"private":              {[]string{"nameserver 10.255.255.53\n"}, "10.255.255.53"},
		"several, in order":    {[]string{"search a.example\nnameserver 192.0.2.53\nnameserver\t198.51.100.53 # two\n"}, "192.0.2.53 198.51.100.53"},
		"IPv4 among IPv6":      {[]string{"nameserver fd00::53\nnameserver 192.0.2.53\n"}, "192.0.2.53"},
		"mapped":               {[]string{"nameserver ::ffff:192.0.2.53\n"}, "192.0.2.53"},
		"stub with upstream":   {[]string{stub, "nameserver 192.0.2.53\n"}, "192.0.2.53"},
		"stub alone":           {[]string{stub, ""}, ""},
		"first file preferred": {[]string{"nameserver 192.0.2.1\n", "nameserver 192.0.2.2\n"}, "192.0.2.1"},
		"garbage":              {[]string{"nameserver\nnameserver x\n;nameserver 192.0.2.1\nnameserver 0.0.0.0\nnameserver 224.0.0.1\n"}, ""},
		"no file":              {[]string{""}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var paths []string
			for i, text := range tc.files {
				path := filepath.Join(t.TempDir(), string(rune('a'+i)))
				if text != "" {
					if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				paths = append(paths, path)
			}
			var got []string
			for _, a := range hostResolvers(paths...) {
				got = append(got, a.String())
			}
			if diff := cmp.Diff(tc.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestAMissingResolverIsAWarning(t *testing.T) {
	was := resolvConf
	defer func() { resolvConf = was }()
	resolvConf = nil
	m := newManager(t, func(c *Config) { c.Resolvers = nil })
	if w := strings.Join(m.Warnings(), "\n"); !strings.Contains(w, "cannot resolve names") {
		t.Errorf("the warnings are %q", w)
	}
	g := newGuest(t, newSlot(t, m))
	if _, _, err := greeting(g.path, publicAddr+":80"); err != nil {
		t.Error(err)
	}
	if err := ask(g.path, GatewayAddr+":53"); err == nil || timedOut(err) {
		t.Errorf("DNS without a resolver: %v, want a refusal", err)
	}
	if w := newManager(t, func(c *Config) { c.Resolvers = []netip.Addr{netip.MustParseAddr(resolverAddr)} }).Warnings(); len(w) > 0 {
		t.Errorf("warnings without cause: %q", w)
	}
}
