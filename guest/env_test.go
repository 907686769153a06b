package guest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
)

func TestSetEnv(t *testing.T) {
	m := newMachine(t)
	c := m.renew(t, eqvps.Env{"A": "1", "B": "2", "PATH": "/nowhere"})
	const show = `echo "$A|$B|$C|${D-none}|$IMAGE"; test -n "$PATH" && test "$PATH" != /nowhere; echo $?`
	for _, step := range []struct {
		change eqvps.EnvChange
		code   eqvps.Code
		want   string
	}{
		{eqvps.EnvChange{Set: eqvps.Env{"A": "x=y\n\xff", "C": ""}, Remove: []string{"PATH", "D"}}, "", "x=y\n\xff|2||none|debian\n0\n"},
		{eqvps.EnvChange{Set: eqvps.Env{"IMAGE": "mine"}, Remove: []string{"A", "B"}}, "", "|||none|mine\n0\n"},
		{eqvps.EnvChange{Remove: []string{"IMAGE"}}, "", "|||none|debian\n0\n"},
		// What comes of it is too much: nothing of it happens.
		{eqvps.EnvChange{Set: many(eqvps.MaxEnvVars)}, eqvps.CodeInvalidValue, "|||none|debian\n0\n"},
		{eqvps.EnvChange{Set: large(), Remove: []string{"C"}}, "", "|||none|debian\n0\n"},
		{eqvps.EnvChange{Set: eqvps.Env{"A": strings.Repeat("x", 500)}}, eqvps.CodeTooLarge, "|||none|debian\n0\n"},
	} {
		if err := c.SetEnv(t.Context(), step.change); eqvps.ErrorCode(err) != step.code {
			t.Errorf("%v: %v, want %q", step.change, err, step.code)
		}
		got := run(t, c, eqvps.ExecRequest{Argv: []string{"/bin/bash", "-c", show}})
		if diff := cmp.Diff(step.want, got.Out); diff != "" {
			t.Errorf("%v (-want +got):\n%s", step.change, diff)
		}
	}
	// Another session finds them.
	if got := sh(t, m.connect(t), "echo ${#L0}$D"); got.Out != "65536\n" {
		t.Errorf("after a reconnect: %q", got.Out)
	}
}

func many(n int) eqvps.Env {
	env := eqvps.Env{}
	for i := range n {
		env[fmt.Sprintf("V%d", i)] = "v"
	}
	return env
}

// large is the largest environment, less 500 bytes.
func large() eqvps.Env {
	env := eqvps.Env{}
	for i := range 3 {
		env[fmt.Sprintf("L%d", i)] = strings.Repeat("x", eqvps.MaxEnvValueBytes)
	}
	env["L3"] = strings.Repeat("x", eqvps.MaxEnvBytes-3*eqvps.MaxEnvValueBytes-4*2-500)
	return env
}

// TestLargestEnv: the largest environment gets into a machine, and beside the
// largest of a call into a command.
func TestLargestEnv(t *testing.T) {
	env := large()
	env["L3"] += strings.Repeat("y", 500)
	own := eqvps.Env{}
	for k, v := range env {
		own["C"+k[1:]+"x"] = v[1:]
	}
	for what, e := range map[string]eqvps.Env{"sandbox": env, "call": own} {
		if err := eqvps.ValidateEnv(e); err != nil {
			t.Fatal(what, err)
		}
	}
	c := newMachine(t).renew(t, env)
	got := run(t, c, eqvps.ExecRequest{Command: "echo ${#L0} ${#L3} ${#C0x}", Env: own})
	if want := fmt.Sprintf("65536 %d 65535\n", len(env["L3"])); got.Out != want {
		t.Errorf("the command sees %q %q, want %q", got.Out, got.Err, want)
	}
}
