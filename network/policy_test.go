package network

import (
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestPolicyGolden(t *testing.T) {
	const golden = "testdata/policy.nft"
	got := Policy()
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("the policy changed; if that is meant, run the test with -update (-want +got):\n%s", diff)
	}
}

// The text that people read and the rules that the kernel has must not part:
// nft, given the text, makes the same rules as we do.
func TestPolicyTextIsWhatTheKernelHas(t *testing.T) {
	resolver := netip.MustParseAddr("10.255.255.53")
	for name, table := range map[string]table{
		"slot":             slotTable(resolver, eqvps.NetworkPolicy{}),
		"slot without DNS": slotTable(netip.Addr{}, eqvps.NetworkPolicy{}),
		"no network":       slotTable(resolver, eqvps.NetworkPolicy{Mode: eqvps.NetworkNone}),
		"denied":           slotTable(resolver, eqvps.NetworkPolicy{Deny: networkRules(t)}),
		"restricted":       slotTable(resolver, eqvps.NetworkPolicy{Mode: eqvps.NetworkRestricted, Allow: networkRules(t)}),
		"host":             hostTable(hostParams{resolvers: []netip.Addr{resolver, netip.MustParseAddr("192.0.2.53")}, opened: []string{"eth0", "eth1"}}),
		"host without DNS": hostTable(hostParams{}),
	} {
		t.Run(name, func(t *testing.T) {
			text := filepath.Join(t.TempDir(), "policy.nft")
			if err := os.WriteFile(text, []byte(table.text()), 0o644); err != nil {
				t.Fatal(err)
			}
			var ours, theirs string
			err := inNamespace(enterNew, func() (err error) {
				if err := table.create(); err != nil {
					return err
				}
				ours, err = nft("list", "ruleset")
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			err = inNamespace(enterNew, func() (err error) {
				if out, err := nft("-f", text); err != nil {
					t.Log(out)
					return err
				}
				theirs, err = nft("list", "ruleset")
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(ours, "chain guest") {
				t.Errorf("no rules in %q", ours)
			}
			if diff := cmp.Diff(theirs, ours); diff != "" {
				t.Errorf("-from text +from Go:\n%s", diff)
			}
		})
	}
}

// networkRules are rules of every form.
func networkRules(t *testing.T) (rules []eqvps.NetworkRule) {
	t.Helper()
	for _, r := range [][3]string{
		{"192.0.2.0/24", "", ""}, {"0.0.0.0/0", "443", "tcp"}, {"198.51.100.7", "8000-8100", "udp"}, {"203.0.113.0/24", "", "udp"}, {"203.0.113.9", "", "any"},
	} {
		rule, err := eqvps.ParseNetworkRule(r[0], r[1], r[2])
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, rule)
	}
	return rules
}

// nft runs nft(8) in the calling thread's namespace.
func nft(args ...string) (string, error) {
	bin, err := exec.LookPath("nft")
	if err != nil {
		bin = "/usr/sbin/nft" // not everybody's PATH has it
	}
	out, err := exec.Command(bin, args...).CombinedOutput()
	return string(out), err
}
