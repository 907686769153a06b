package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/eqvps/eqvps"
)

type secretSetCmd struct {
	Name        string `arg:"" help:"Name of the secret, which is that of the variable in a sandbox."`
	ValueFile   string `placeholder:"FILE" help:"File that holds the value, - for standard input (default: it is asked for without showing it; without a terminal, standard input)."`
	KeepNewline bool   `help:"Keep a newline at the end of a file or of standard input (default: it is dropped)."`
	JSON        bool   `name:"json" help:"Print the record as JSON."`
}

// Help is shown by `eqvps secret set --help`.
func (secretSetCmd) Help() string {
	return "The value is never an argument: arguments are for every user of this machine to see."
}

func (c *secretSetCmd) Run(ctx context.Context, a *app) error {
	if err := eqvps.ValidateSecret(c.Name, ""); err != nil {
		return usageFrom(err)
	}
	cl, err := a.connect()
	if err != nil {
		return err
	}
	value, err := c.value(ctx, a)
	if err != nil {
		return orSignal(ctx, err)
	}
	if err := eqvps.ValidateSecret(c.Name, value); err != nil {
		return err
	}
	sec, err := cl.PutSecret(ctx, c.Name, value)
	if err != nil {
		return orSignal(ctx, err)
	}
	if c.JSON {
		return a.json(sec)
	}
	_, err = fmt.Fprintf(a.stdout, "%s is set\n", inert(sec.Name))
	return err
}

// value reads the value from where it is.
func (c *secretSetCmd) value(ctx context.Context, a *app) (string, error) {
	in := a.stdin
	switch c.ValueFile {
	case "-":
	case "":
		if f, ok := a.stdin.(*os.File); ok && isTerminal(f) {
			return a.askHidden(ctx, f, "Value of "+c.Name+" (not shown): ")
		}
	default:
		f, err := os.Open(c.ValueFile)
		if err != nil {
			return "", localError(c.ValueFile, err)
		}
		defer f.Close()
		in = f
	}
	// One byte more than fits, besides a newline, tells that it is too long.
	b, err := io.ReadAll(io.LimitReader(in, eqvps.MaxEnvValueBytes+int64(len("\r\n"))+1))
	if err != nil {
		return "", fmt.Errorf("the value cannot be read: %w", err)
	}
	if rest, ok := bytes.CutSuffix(b, []byte("\n")); ok && !c.KeepNewline {
		b = bytes.TrimSuffix(rest, []byte("\r"))
	}
	return string(b), nil
}

type secretListCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

func (c *secretListCmd) Run(ctx context.Context, a *app) error {
	cl, err := a.connect()
	if err != nil {
		return err
	}
	list, err := cl.ListSecrets(ctx)
	if err != nil {
		return orSignal(ctx, err)
	}
	if c.JSON {
		return a.json(list.Data)
	}
	now := a.now()
	rows := make([][]string, 0, len(list.Data))
	for _, s := range list.Data {
		rows = append(rows, []string{s.Name, when(s.CreatedAt, now), when(s.UpdatedAt, now)})
	}
	return a.table([]string{"NAME", "CREATED", "VALUE SET"}, rows)
}

type secretRmCmd struct {
	Names []string `arg:"" name:"name" help:"Names of the secrets."`
}

func (c *secretRmCmd) Run(ctx context.Context, a *app) error {
	cl, err := a.connect()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range c.Names {
		if err := cl.DeleteSecret(ctx, name); err != nil {
			errs = append(errs, orSignal(ctx, err))
			continue
		}
		fmt.Fprintf(a.stdout, "%s is deleted\n", inert(name))
	}
	return errors.Join(errs...)
}

type secretRotateKeyCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

func (c *secretRotateKeyCmd) Run(ctx context.Context, a *app) error {
	cl, err := a.connect()
	if err != nil {
		return err
	}
	r, err := cl.RotateKeys(ctx)
	if err != nil {
		return orSignal(ctx, err)
	}
	if c.JSON {
		return a.json(r)
	}
	_, err = fmt.Fprintf(a.stdout, "the server has a new key: %d values encrypted anew, %d old keys dropped\n", r.Resealed, r.Retired)
	return err
}
