package main

import (
	"context"
	"fmt"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

type envCmd struct {
	Env   []string `short:"e" sep:"none" placeholder:"NAME[=VALUE]" help:"Set a variable for the commands that start from now on; NAME alone takes its value from here. Repeatable."`
	Unset []string `sep:"none" placeholder:"NAME" help:"Remove a variable. Repeatable."`
	ID    string   `arg:"" help:"Id of the sandbox."`
	JSON  bool     `name:"json" help:"Print JSON."`
}

// Run prints the names of the variables, after the change if there is one.
func (c *envCmd) Run(ctx context.Context, a *app) error {
	set, err := parseEnv(c.Env)
	if err != nil {
		return err
	}
	change := eqvps.EnvChange{Set: set, Remove: c.Unset}
	changes := len(set)+len(c.Unset) > 0
	if changes {
		if err := change.Validate(); err != nil {
			return usageFrom(err)
		}
	}
	cl, err := a.connect()
	if err != nil {
		return err
	}
	var names []string
	if changes {
		names, err = cl.SetEnv(ctx, c.ID, change)
	} else {
		names, err = cl.EnvKeys(ctx, c.ID)
	}
	if err != nil {
		return orSignal(ctx, err)
	}
	if c.JSON {
		return a.json(wire.EnvKeys{EnvKeys: names})
	}
	for _, n := range names {
		fmt.Fprintln(a.stdout, inert(n))
	}
	return nil
}
