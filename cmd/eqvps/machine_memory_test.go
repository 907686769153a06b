package main

import (
	"testing"

	"github.com/eqvps/eqvps/wire"
)

// TestOutOfMemory: a command that takes all memory ends with a reason, and
// neither the agent nor the machine goes with it.
func TestOutOfMemory(t *testing.T) {
	_, c := startServer(t)
	id := newSandbox(t, c)
	r, err := c.Exec(t.Context(), id, wire.ExecRequest{
		Command: `python3 -c 'b = bytearray()
for i in range(800): b += bytes(64 << 20)'`,
		Options: wire.Options{Timeout: 55},
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.ExitCode != 137 || !r.OOM || r.TimedOut {
		t.Errorf("exit code %d, oom %v, timed out %v\n%s", r.ExitCode, r.OOM, r.TimedOut, r.Stderr)
	}
	if got := shell(t, c, id, "echo ok"); got != "ok" {
		t.Errorf("afterwards: %q", got)
	}
}
