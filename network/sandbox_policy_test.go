package network

import (
	"bufio"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
)

func rulesOf(t *testing.T, list ...[3]string) (rules []eqvps.NetworkRule) {
	t.Helper()
	for _, r := range list {
		rule, err := eqvps.ParseNetworkRule(r[0], r[1], r[2])
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, rule)
	}
	return rules
}

// TestPolicyOfASandbox: what one sandbox may reach besides what holds for all,
// and what no policy can allow.
func TestPolicyOfASandbox(t *testing.T) {
	m := newManager(t)
	s, other := newSlot(t, m), newSlot(t, m)
	g, neighbour := newGuest(t, s), newGuest(t, other)
	const web, dns, mail, private = publicAddr + ":80", GatewayAddr + ":53", publicAddr + ":25", "172.16.5.5:80"
	everywhere := rulesOf(t, [3]string{"0.0.0.0/0", "", "any"})
	for _, c := range []struct {
		name   string
		policy eqvps.NetworkPolicy
		open   []string // the rest is refused
	}{
		{"as made", eqvps.NetworkPolicy{}, []string{web, dns}},
		{"none", eqvps.NetworkPolicy{Mode: eqvps.NetworkNone}, nil},
		{"nothing allowed", eqvps.NetworkPolicy{Mode: eqvps.NetworkRestricted}, []string{dns}},
		{"its address allowed", eqvps.NetworkPolicy{Mode: eqvps.NetworkRestricted, Allow: rulesOf(t, [3]string{publicAddr, "80", "tcp"})}, []string{web, dns}},
		{"another port allowed", eqvps.NetworkPolicy{Mode: eqvps.NetworkRestricted, Allow: rulesOf(t, [3]string{publicAddr, "81-90", "tcp"})}, []string{dns}},
		{"another protocol allowed", eqvps.NetworkPolicy{Mode: eqvps.NetworkRestricted, Allow: rulesOf(t, [3]string{publicAddr, "80", "udp"})}, []string{dns}},
		{"all allowed that can be", eqvps.NetworkPolicy{Mode: eqvps.NetworkRestricted, Allow: everywhere}, []string{web, dns}},
		{"its range denied", eqvps.NetworkPolicy{Deny: rulesOf(t, [3]string{publicAddr, "1-1024", "tcp"})}, []string{dns}},
		{"another denied", eqvps.NetworkPolicy{Deny: rulesOf(t, [3]string{"192.0.2.255", "", ""})}, []string{web, dns}},
		{"open again", eqvps.NetworkPolicy{Mode: eqvps.NetworkOpen}, []string{web, dns}},
	} {
		if c.name != "as made" {
			if err := s.SetPolicy(c.policy); err != nil {
				t.Fatal(err)
			}
		}
		open := map[string]bool{}
		for _, a := range c.open {
			open[a] = true
		}
		for _, a := range []string{web, dns, mail, private} {
			_, _, err := greeting(g.path, a)
			if open[a] && err != nil || !open[a] && !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s: %s: %v, want it open: %v", c.name, a, err, open[a])
			}
		}
		if _, _, err := greeting(neighbour.path, web); err != nil {
			t.Errorf("%s: another sandbox: %v", c.name, err)
		}
	}
}

// TestPolicyEndsWhatItForbids: a connection that was made before goes no
// further, and one that is still allowed goes on.
func TestPolicyEndsWhatItForbids(t *testing.T) {
	m := newManager(t)
	s := newSlot(t, m)
	g := newGuest(t, s)
	var conn net.Conn
	if err := inNamespace(enterNamed(g.path), func() (err error) {
		conn, err = net.DialTimeout("tcp4", publicAddr+":80", 5*time.Second)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer := bufio.NewReader(conn)
	if _, err := answer.ReadString('\n'); err != nil { // its greeting
		t.Fatal(err)
	}
	alive := func() bool {
		if _, err := conn.Write([]byte("x")); err != nil {
			return false
		}
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		b, err := answer.ReadByte()
		return err == nil && b == 'x'
	}
	if err := s.SetPolicy(eqvps.NetworkPolicy{Mode: eqvps.NetworkRestricted, Allow: rulesOf(t, [3]string{publicAddr, "80", ""})}); err != nil {
		t.Fatal(err)
	}
	if !alive() {
		t.Error("a connection that is still allowed is gone")
	}
	if err := s.SetPolicy(eqvps.NetworkPolicy{Mode: eqvps.NetworkNone}); err != nil {
		t.Fatal(err)
	}
	// It is reset at the first packet of the guest's.
	_, _ = conn.Write([]byte("x"))
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.Copy(io.Discard, conn); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("a connection that is forbidden ends with %v, want a reset", err)
	}
}
