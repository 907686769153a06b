package main

import (
	"context"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

// commandFlags are what run and sandbox exec share.
type commandFlags struct {
	Env   []string `short:"e" sep:"none" placeholder:"NAME[=VALUE]" help:"Environment variable of the command; NAME alone takes its value from here. Repeatable."`
	Stdin bool     `short:"i" help:"Pass standard input to the command, at most ${maxstdin}; it is read to its end first."`
	JSON  bool     `name:"json" help:"Print one JSON object when the command has ended, instead of its output as it comes."`
}

type execCmd struct {
	commandFlags
	Cwd     string   `placeholder:"DIR" help:"Absolute folder to run in (default /root)."`
	Timeout int      `default:"${exec}" placeholder:"SECONDS" help:"Seconds until the command and all its children are killed, 1 to ${maxexec} (default ${exec})."`
	ID      string   `arg:"" help:"Id of the sandbox."`
	Command []string `arg:"" passthrough:"partial" help:"After --: one argument is run by a shell (bash -lc), several are run as they are."`
}

func (c *execCmd) Run(ctx context.Context, a *app) error {
	argv := dropDashes(c.Command)
	if len(argv) == 0 {
		return usageErrorf("there is no command after --")
	}
	req := wire.ExecRequest{Cwd: c.Cwd}
	if len(argv) == 1 {
		req.Command = argv[0]
	} else {
		req.Argv = argv
	}
	if err := c.fill(a, &req, c.Timeout); err != nil {
		return err
	}
	cl, err := a.connect()
	if err != nil {
		return own(err)
	}
	res, err := a.exec(ctx, cl, c.ID, req, c.JSON)
	if err != nil {
		return own(err)
	}
	if c.JSON {
		if err := a.json(wire.NewExecResult(res, false)); err != nil {
			return own(err)
		}
	}
	return exitWith(res.Code)
}

// dropDashes removes the -- that led here.
func dropDashes(args []string) []string {
	if len(args) > 0 && args[0] == "--" {
		return args[1:]
	}
	return args
}

// fill completes a request and checks it, so that a mistake is found before
// anything is started.
func (f *commandFlags) fill(a *app, req *wire.ExecRequest, timeout int) (err error) {
	limit := int(eqvps.MaxExecTimeout / time.Second)
	if timeout < 1 || timeout > limit {
		return usageErrorf("--timeout must be 1 to %d seconds", limit)
	}
	req.Timeout = wire.Seconds(timeout)
	env, err := parseEnv(f.Env)
	if err != nil {
		return err
	}
	req.Env, req.EnvBase64 = wire.SplitEnv(env)
	if f.Stdin {
		if req.StdinBase64, err = a.readStdin(); err != nil {
			return own(err)
		}
	}
	if _, err := req.Domain(); err != nil {
		return usageFrom(err)
	}
	return nil
}

// exec runs a command and passes on what it prints as it comes, or, with
// capture, keeps it.
func (a *app) exec(ctx context.Context, c *client.Client, id string, req wire.ExecRequest, capture bool) (*eqvps.ExecResult, error) {
	var res eqvps.ExecResult
	out, errout := a.stdout, a.stderr
	if capture {
		out, errout = &res.Stdout, &res.Stderr
	}
	st, err := c.ExecStream(ctx, id, req, func(s eqvps.Stream, p []byte) error {
		w := out
		if s == eqvps.Stderr {
			w = errout
		}
		_, err := w.Write(p)
		return err
	})
	if err != nil {
		return nil, orSignal(ctx, err)
	}
	res.ExitStatus = st
	switch {
	case st.TimedOut:
		a.note("the command was killed after %.0f s (--timeout)", float64(req.Timeout))
	case st.OOM:
		a.note("the command was killed because the sandbox's memory was used up; use a larger tariff")
	}
	return &res, nil
}

// exitWith ends the program as the command ended.
func exitWith(code int) error {
	if code == 0 {
		return nil
	}
	return exitCode(code)
}
