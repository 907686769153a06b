package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

type taskCmd struct {
	Start taskStartCmd `cmd:"" help:"Start a command in the background of a sandbox and print the task's id."`
	List  taskListCmd  `cmd:"" help:"List a sandbox's tasks, newest first."`
	Logs  taskLogsCmd  `cmd:"" help:"Print what a task has printed."`
	Kill  taskKillCmd  `cmd:"" help:"Kill tasks and all processes they have started."`
}

type taskStartCmd struct {
	Env     []string `short:"e" sep:"none" placeholder:"NAME[=VALUE]" help:"Environment variable of the command; NAME alone takes its value from here. Repeatable."`
	Stdin   bool     `short:"i" help:"Pass standard input to the command, at most ${maxstdin}; it is read to its end first."`
	Cwd     string   `placeholder:"DIR" help:"Absolute folder to run in (default /root)."`
	Timeout *int     `placeholder:"SECONDS" help:"Seconds until the command and all its children are killed (default: as long as the sandbox lives)."`
	JSON    bool     `name:"json" help:"Print the task as JSON instead of its id."`
	ID      string   `arg:"" help:"Id of the sandbox."`
	Command []string `arg:"" passthrough:"partial" help:"After --: one argument is run by a shell (bash -lc), several are run as they are."`
}

func (c *taskStartCmd) Run(ctx context.Context, a *app) error {
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
	if c.Timeout != nil {
		if *c.Timeout < 1 {
			return usageErrorf("--timeout must be at least 1 second")
		}
		req.Timeout = wire.Seconds(*c.Timeout)
	}
	env, err := parseEnv(c.Env)
	if err != nil {
		return err
	}
	req.Env, req.EnvBase64 = wire.SplitEnv(env)
	if c.Stdin {
		if req.StdinBase64, err = a.readStdin(); err != nil {
			return err
		}
	}
	if _, err := req.Task(); err != nil {
		return usageFrom(err)
	}
	cl, err := a.connect()
	if err != nil {
		return err
	}
	t, err := cl.StartTask(ctx, c.ID, req)
	if err != nil {
		return orSignal(ctx, err)
	}
	if c.JSON {
		return a.json(t)
	}
	_, err = fmt.Fprintln(a.stdout, inert(t.TaskID))
	return err
}

// readStdin reads what a command gets as its standard input.
func (a *app) readStdin() ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(a.stdin, eqvps.MaxStdinBytes+1))
	if err != nil {
		return nil, fmt.Errorf("standard input cannot be read: %w", err)
	}
	if len(b) > eqvps.MaxStdinBytes {
		return nil, fmt.Errorf("standard input has more than %d MiB; upload it as a file instead", eqvps.MaxStdinBytes>>20)
	}
	return b, nil
}

type taskListCmd struct {
	ID   string `arg:"" help:"Id of the sandbox."`
	JSON bool   `name:"json" help:"Print JSON."`
}

func (c *taskListCmd) Run(ctx context.Context, a *app) error {
	cl, err := a.connect()
	if err != nil {
		return err
	}
	list, err := cl.ListTasks(ctx, c.ID)
	if err != nil {
		return orSignal(ctx, err)
	}
	if c.JSON {
		return a.json(list.Data)
	}
	rows := make([][]string, 0, len(list.Data))
	for _, t := range list.Data {
		code := "-"
		if t.ExitCode != nil {
			code = fmt.Sprint(*t.ExitCode)
		}
		rows = append(rows, []string{
			t.TaskID, t.State, code, when(t.StartedAt, a.now()), span(time.Duration(t.RunningSeconds * float64(time.Second))), t.Command,
		})
	}
	return a.table([]string{"ID", "STATE", "EXIT CODE", "STARTED", "RAN", "COMMAND"}, rows)
}

type taskLogsCmd struct {
	Follow bool   `short:"f" help:"Go on until the task has ended."`
	ID     string `arg:"" help:"Id of the sandbox."`
	Task   string `arg:"" help:"Id of the task."`
}

// Between two reads of a task that prints nothing, from the first to the last.
const (
	pollFirst = 100 * time.Millisecond
	pollMost  = time.Second
)

// patience is how long a task is followed whose server does not answer: longer
// than it takes to start one anew.
const patience = time.Minute

func (c *taskLogsCmd) Run(ctx context.Context, a *app) error {
	cl, err := a.connect()
	if err != nil {
		return err
	}
	r := client.ReadTask{Raw: true}
	wait := pollFirst
	var answered time.Time // zero: never
	quiet := false         // the server has been away since
	for {
		out, err := cl.ReadTask(ctx, c.ID, c.Task, r)
		if err != nil {
			if !c.Follow || answered.IsZero() || !passing(err) || a.now().Sub(answered) > patience {
				return orSignal(ctx, err)
			}
			if !quiet {
				a.note("the server does not answer; trying again for %.0f s", patience.Seconds())
			}
			quiet = true
			if err := pause(ctx, pollMost); err != nil {
				return err
			}
			continue
		}
		answered, quiet = a.now(), false
		if err := a.taskOutput(out); err != nil {
			return err
		}
		printed := out.StdoutNextOffset > r.Stdout || out.StderrNextOffset > r.Stderr
		r.Stdout, r.Stderr = out.StdoutNextOffset, out.StderrNextOffset
		switch {
		case r.Stdout < out.StdoutTotal || r.Stderr < out.StderrTotal:
			continue // there is more already
		case out.ExitCode != nil:
			a.note("the task is %s (exit code %d)", inert(out.State), *out.ExitCode)
			return nil
		case !c.Follow:
			return nil
		case printed:
			wait = pollFirst
		}
		if err := pause(ctx, wait); err != nil {
			return err
		}
		wait = min(2*wait, pollMost)
	}
}

// pause waits, unless the program is told to end.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return orSignal(ctx, ctx.Err())
	}
}

// passing reports whether an error may be gone when a server has been started
// anew. A refusal stays one.
func passing(err error) bool {
	var refused *client.Error
	return !errors.As(err, &refused) || refused.Status >= 502
}

// taskOutput passes on a part of a task's output, byte for byte.
func (a *app) taskOutput(out *wire.TaskOutput) error {
	for _, s := range []struct {
		name    string
		to      io.Writer
		data    []byte
		skipped int64
	}{{"output", a.stdout, out.StdoutBase64, out.StdoutSkipped}, {"error output", a.stderr, out.StderrBase64, out.StderrSkipped}} {
		if s.skipped > 0 {
			a.note("%d bytes of its %s are gone already: only the end is kept", s.skipped, s.name)
		}
		if _, err := s.to.Write(s.data); err != nil {
			return err
		}
	}
	return nil
}

type taskKillCmd struct {
	ID    string   `arg:"" help:"Id of the sandbox."`
	Tasks []string `arg:"" name:"task" help:"Ids of the tasks."`
	JSON  bool     `name:"json" help:"Print the tasks as JSON."`
}

func (c *taskKillCmd) Run(ctx context.Context, a *app) error {
	cl, err := a.connect()
	if err != nil {
		return err
	}
	ended := []*wire.Task{}
	var errs []error
	for _, id := range c.Tasks {
		t, err := cl.KillTask(ctx, c.ID, id)
		if err != nil {
			errs = append(errs, orSignal(ctx, err))
			continue
		}
		ended = append(ended, t)
		if !c.JSON {
			fmt.Fprintf(a.stdout, "%s is %s after %.1f s\n", inert(t.TaskID), inert(t.State), t.RunningSeconds)
		}
	}
	if c.JSON {
		errs = append(errs, a.json(ended))
	}
	return errors.Join(errs...)
}
