package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

type eventsCmd struct {
	ID   string `arg:"" help:"Id of the sandbox."`
	JSON bool   `name:"json" help:"Print JSON."`
}

func (c *eventsCmd) Run(ctx context.Context, a *app) error {
	cl, err := a.connect()
	if err != nil {
		return err
	}
	all := []wire.SandboxEvent{}
	for after := int64(0); ; {
		page, err := cl.Events(ctx, c.ID, after, 0)
		if err != nil {
			return orSignal(ctx, err)
		}
		all = append(all, page.Data...)
		if !page.HasMore || len(page.Data) == 0 {
			break
		}
		after = page.Data[len(page.Data)-1].Seq
	}
	if c.JSON {
		return a.json(all)
	}
	rows := make([][]string, 0, len(all))
	for _, e := range all {
		rows = append(rows, []string{e.At.Local().Format(time.DateTime), e.Kind, orDash(e.Reason), e.Detail})
	}
	return a.table([]string{"TIME", "EVENT", "REASON", ""}, rows)
}

type extendCmd struct {
	ID          string `arg:"" help:"Id of the sandbox."`
	Seconds     *int64 `placeholder:"SECONDS" help:"Added to its time to live."`
	IdleTimeout *int64 `placeholder:"SECONDS" help:"Seconds without use, instead of those it has."`
	JSON        bool   `name:"json" help:"Print its record as JSON."`
}

func (c *extendCmd) Run(ctx context.Context, a *app) error {
	return eachSandbox(ctx, a, []string{c.ID}, c.JSON, func(cl *client.Client, id string) (*wire.Sandbox, error) {
		return cl.Extend(ctx, id, wire.Extend{Seconds: c.Seconds, IdleTimeout: c.IdleTimeout})
	}, func(sb *wire.Sandbox) string {
		return fmt.Sprintf("lives until %s", sb.ExpiresAt.Local().Format(time.DateTime))
	})
}

type pauseCmd struct {
	IDs  []string `arg:"" name:"id" help:"Ids of the sandboxes."`
	JSON bool     `name:"json" help:"Print their records as JSON."`
}

func (c *pauseCmd) Run(ctx context.Context, a *app) error {
	return eachSandbox(ctx, a, c.IDs, c.JSON, func(cl *client.Client, id string) (*wire.Sandbox, error) {
		return cl.Pause(ctx, id)
	}, func(*wire.Sandbox) string { return "is paused" })
}

type resumeCmd struct {
	IDs      []string `arg:"" name:"id" help:"Ids of the sandboxes."`
	FromDisk bool     `help:"Drop what is in memory and start them anew from their disks, also those that run."`
	JSON     bool     `name:"json" help:"Print their records as JSON."`
}

func (c *resumeCmd) Run(ctx context.Context, a *app) error {
	return eachSandbox(ctx, a, c.IDs, c.JSON, func(cl *client.Client, id string) (*wire.Sandbox, error) {
		return cl.Resume(ctx, id, c.FromDisk)
	}, func(*wire.Sandbox) string { return "runs" })
}

// eachSandbox makes a call for each sandbox and tells of each. One that fails
// does not keep the others from their turn.
func eachSandbox(ctx context.Context, a *app, ids []string, asJSON bool,
	call func(*client.Client, string) (*wire.Sandbox, error), tell func(*wire.Sandbox) string) error {
	cl, err := a.connect()
	if err != nil {
		return err
	}
	done := []*wire.Sandbox{}
	var errs []error
	for _, id := range ids {
		sb, err := call(cl, id)
		if err != nil {
			errs = append(errs, orSignal(ctx, err))
			continue
		}
		done = append(done, sb)
		if !asJSON {
			fmt.Fprintf(a.stdout, "%s %s\n", inert(sb.ID), tell(sb))
		}
	}
	if asJSON {
		errs = append(errs, a.json(done))
	}
	return errors.Join(errs...)
}

type drainCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

func (c *drainCmd) Run(ctx context.Context, a *app) error {
	cl, err := a.connect()
	if err != nil {
		return err
	}
	paused, err := cl.Drain(ctx)
	if err != nil {
		return orSignal(ctx, err)
	}
	if c.JSON {
		return a.json(wire.Drained{Paused: paused})
	}
	_, err = fmt.Fprintf(a.stdout, "%d persistent sandboxes are paused; the server takes no new ones until it is started again\n", paused)
	return err
}
