package main

import (
	"slices"
	"testing"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// TestNetworkPolicy: a sandbox is held to its policy from its first command on,
// through changes, a pause, a reboot and another server. What its policy lets it
// reach is proved in package network; here the gateway's resolver stands for it.
func TestNetworkPolicy(t *testing.T) {
	server, addr := spawnServer(t)
	c := adminClient(t, addr)
	none := &wire.Network{Mode: string(eqvps.NetworkNone)}
	id := newPersistent(t, c, wire.CreateSandbox{Network: none})
	// The gateway resolves names, by TCP as well; without a network it refuses.
	const probe = `python3 -c 'import socket
try: socket.create_connection(("10.0.0.1", 53), 10); print("open")
except ConnectionRefusedError: print("refused")'`
	want := func(when, want string) {
		t.Helper()
		if got := shell(t, c, id, probe); got != want {
			t.Errorf("%s it is %q, want %q", when, got, want)
		}
	}
	want("at first", "refused")
	if _, err := c.SetNetwork(t.Context(), id, wire.Network{Mode: string(eqvps.NetworkRestricted)}); err != nil {
		t.Fatal(err)
	}
	want("restricted", "open")
	if _, err := c.SetNetwork(t.Context(), id, *none); err != nil {
		t.Fatal(err)
	}
	want("closed again", "refused")
	if err := server.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = server.Wait()

	_, c = startServer(t)
	deleteAtEnd(t, c, id)
	want("under another server", "refused")
	if _, err := c.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Resume(t.Context(), id, false); err != nil {
		t.Fatal(err)
	}
	want("after a pause", "refused")
	if _, err := c.Resume(t.Context(), id, true); err != nil {
		t.Fatal(err)
	}
	want("after a reboot", "refused")
	if got := kinds(t, c, id); !slices.Contains(got, "network_changed") {
		t.Errorf("events %v", got)
	}
	open := newSandbox(t, c)
	if got := shell(t, c, open, probe); got != "open" {
		t.Errorf("for others it is %q", got)
	}
}
