package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

// maxPolicyFile bounds a policy in a file.
const maxPolicyFile = 64 << 10

// networkPolicy reads a policy as it is given on the command line: a mode, or
// @FILE with JSON.
func networkPolicy(arg string) (*wire.Network, error) {
	name, isFile := strings.CutPrefix(arg, "@")
	if !isFile {
		n := &wire.Network{Mode: arg}
		if _, err := n.Domain(); err != nil {
			return nil, usageFrom(err)
		}
		return n, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, localError(name, err)
	}
	defer f.Close()
	var n wire.Network
	dec := json.NewDecoder(io.LimitReader(f, maxPolicyFile))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&n); err != nil {
		return nil, fmt.Errorf("%s is no network policy in JSON: %w", name, err)
	}
	if _, err := n.Domain(); err != nil {
		return nil, fmt.Errorf("%s: %s", name, eqvps.AsError(err).Message)
	}
	return &n, nil
}

type networkCmd struct {
	ID     string `arg:"" help:"Id of the sandbox."`
	Policy string `arg:"" placeholder:"POLICY" help:"open, none, or @FILE with a policy in JSON."`
	JSON   bool   `name:"json" help:"Print its record as JSON."`
}

func (c *networkCmd) Run(ctx context.Context, a *app) error {
	p, err := networkPolicy(c.Policy)
	if err != nil {
		return err
	}
	return eachSandbox(ctx, a, []string{c.ID}, c.JSON, func(cl *client.Client, id string) (*wire.Sandbox, error) {
		return cl.SetNetwork(ctx, id, *p)
	}, func(sb *wire.Sandbox) string { return "may reach what its policy says: " + sb.Network.Mode })
}
