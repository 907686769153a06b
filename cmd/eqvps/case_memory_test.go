package main

import (
	"strings"
	"testing"

	"github.com/eqvps/eqvps/wire"
)

// Kind of fault: a command that takes all memory takes the agent with it, and
// nobody is told why.
func TestMemoryHogDiesAlone(t *testing.T) {
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
	if r.ExitCode != 137 || !r.OOM || r.TimedOut || !strings.Contains(r.Hint, "memory") {
		t.Errorf("exit code %d, oom %v, timed out %v, hint %q\n%s", r.ExitCode, r.OOM, r.TimedOut, r.Hint, r.Stderr)
	}
	alive(t, c, id)
	if sb, err := c.Get(t.Context(), id); err != nil || sb.State != "running" {
		t.Errorf("afterwards it is %+v, %v", sb, err)
	}
	// What was bought: ⌈0.5⌉ processors, and a gibibyte but for the kernel's part.
	if got := shell(t, c, id, "nproc; awk '/^MemTotal:/ { print ($2 > 900 * 1024 && $2 <= 1024 * 1024) }' /proc/meminfo"); got != "1\n1" {
		t.Errorf("processors, memory as bought: %q", got)
	}
}
