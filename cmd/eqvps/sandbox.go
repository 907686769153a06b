package main

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

type createCmd struct {
	Network     string   `placeholder:"POLICY" help:"What it may reach: open (the default), none, or @FILE with a policy in JSON."`
	Persistent  bool     `help:"Billed by the started hour; can be paused, and comes back after a restart of its host."`
	Tariff      string   `placeholder:"NAME" help:"Size: ${tariffs} (default ${tariff})."`
	Image       string   `placeholder:"NAME" help:"Name or id of the image (default: the server's)."`
	IdleTimeout *int64   `placeholder:"SECONDS" help:"Delete it after so many seconds without use (default 300); a persistent one is paused instead (default never)."`
	TTL         *int64   `name:"ttl" placeholder:"SECONDS" help:"Delete it after so many seconds in any case (default 86400, persistent 2592000)."`
	Env         []string `short:"e" sep:"none" placeholder:"NAME[=VALUE]" help:"Environment variable of every command in it; NAME alone takes its value from here. Repeatable."`
	Secret      []string `sep:"none" placeholder:"NAME" help:"Secret of the account that it gets as a variable, * for all (default: none). Repeatable."`
	JSON        bool     `name:"json" help:"Print the whole record as JSON instead of the id."`
}

func (c *createCmd) Run(ctx context.Context, a *app) error {
	env, err := parseEnv(c.Env)
	if err != nil {
		return err
	}
	cl, err := a.connect()
	if err != nil {
		return err
	}
	req := wire.CreateSandbox{Tariff: c.Tariff, Image: c.Image, IdleTimeout: c.IdleTimeout, TTL: c.TTL, Secrets: c.Secret}
	if c.Persistent {
		req.Mode = string(eqvps.Persistent)
	}
	req.Env, req.EnvBase64 = wire.SplitEnv(env)
	sb, err := cl.Create(ctx, req)
	if err != nil {
		return orSignal(ctx, err)
	}
	if c.JSON {
		return a.json(sb)
	}
	_, err = fmt.Fprintln(a.stdout, inert(sb.ID))
	return err
}

type listCmd struct {
	All  bool `short:"a" help:"Also those that have ended."`
	JSON bool `name:"json" help:"Print JSON."`
}

func (c *listCmd) Run(ctx context.Context, a *app) error {
	cl, err := a.connect()
	if err != nil {
		return err
	}
	o := client.ListOptions{}
	if c.All {
		o.State = "all"
	}
	list, err := listAll(ctx, cl, o)
	if err != nil {
		return orSignal(ctx, err)
	}
	if c.JSON {
		return a.json(list)
	}
	now := a.now()
	rows := make([][]string, 0, len(list))
	for _, sb := range list {
		rows = append(rows, []string{
			sb.ID, stateOf(sb), sb.Tariff, when(sb.CreatedAt, now), when(sb.LastActiveAt, now),
			span(time.Duration(sb.RunningSeconds * float64(time.Second))), eqvps.MicroUSD(sb.BilledMicroUSD).String(),
		})
	}
	return a.table([]string{"ID", "STATE", "TARIFF", "CREATED", "LAST USED", "RAN", "COST"}, rows)
}

// listAll follows the pages of a list to its end.
func listAll(ctx context.Context, cl *client.Client, o client.ListOptions) ([]wire.Sandbox, error) {
	all := []wire.Sandbox{}
	for {
		page, err := cl.List(ctx, o)
		if err != nil {
			return nil, err
		}
		all = append(all, page.Data...)
		if !page.HasMore || len(page.Data) == 0 {
			return all, nil
		}
		o.After = page.Data[len(page.Data)-1].ID
	}
}

func stateOf(sb wire.Sandbox) string {
	why := sb.Reason
	if why == nil {
		why = sb.PauseReason
	}
	if why != nil && *why != sb.State {
		return sb.State + " (" + *why + ")"
	}
	return sb.State
}

type getCmd struct {
	ID   string `arg:"" help:"Id of the sandbox."`
	JSON bool   `name:"json" help:"Print JSON: the record, and under \"usage\" what it has used."`
}

func (c *getCmd) Run(ctx context.Context, a *app) error {
	cl, err := a.connect()
	if err != nil {
		return err
	}
	sb, err := cl.Get(ctx, c.ID)
	if err != nil {
		return orSignal(ctx, err)
	}
	use, err := cl.Usage(ctx, c.ID)
	if err != nil {
		return orSignal(ctx, err)
	}
	if c.JSON {
		return a.json(struct {
			*wire.Sandbox
			Usage *wire.Usage `json:"usage"`
		}{sb, use})
	}
	now := a.now()
	return a.fields([][2]string{
		{"id", sb.ID},
		{"state", stateOf(*sb)},
		{"mode", sb.Mode},
		{"tariff", fmt.Sprintf("%s, %s an hour", sb.Tariff, eqvps.MicroUSD(sb.HourlyMicroUSD))},
		{"image", sb.Image},
		{"network", sb.Network.Mode},
		{"variables", orDash(new(strings.Join(sb.EnvKeys, " ")))},
		{"created", stamp(sb.CreatedAt, now)},
		{"last used", stamp(sb.LastActiveAt, now)},
		{"paused", stamp(timeOrZero(sb.PausedAt), now)},
		{"ended", stamp(timeOrZero(sb.EndedAt), now)},
		{"expires", stamp(sb.ExpiresAt, now)},
		{"idle timeout", idleTimeout(sb.IdleTimeout)},
		{"ran", fmt.Sprintf("%.1f s", use.RunningSeconds)},
		{"processor", fmt.Sprintf("%.1f s", use.CPUSeconds)},
		{"sent", humanize.Bytes(use.EgressBytes)},
		{"cost", eqvps.MicroUSD(use.BilledMicroUSD).String()},
	})
}

func idleTimeout(seconds int64) string {
	if seconds == 0 {
		return "-"
	}
	return fmt.Sprintf("%d s", seconds)
}

// stamp is a time and how far away it is.
func stamp(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.DateTime) + " (" + when(t, now) + ")"
}

type killCmd struct {
	IDs  []string `arg:"" name:"id" help:"Ids of the sandboxes."`
	JSON bool     `name:"json" help:"Print their final records as JSON."`
}

func (c *killCmd) Run(ctx context.Context, a *app) error {
	return eachSandbox(ctx, a, c.IDs, c.JSON, func(cl *client.Client, id string) (*wire.Sandbox, error) {
		return cl.Delete(ctx, id)
	}, func(sb *wire.Sandbox) string {
		return fmt.Sprintf("is deleted after %.1f s; it cost %s", sb.RunningSeconds, eqvps.MicroUSD(sb.BilledMicroUSD))
	})
}

type uploadCmd struct {
	Mode   string `placeholder:"OCTAL" help:"Permissions in the sandbox (default: those of the local file)."`
	ID     string `arg:"" help:"Id of the sandbox."`
	Local  string `arg:"" help:"File on this machine; a pipe will do."`
	Remote string `arg:"" help:"Absolute path in the sandbox; folders are made as needed."`
	JSON   bool   `name:"json" help:"Print JSON."`
}

func (c *uploadCmd) Run(ctx context.Context, a *app) error {
	t, err := checked(transfer{c.Local, c.Remote})
	if err != nil {
		return err
	}
	mode, err := eqvps.ParseMode(c.Mode)
	if err != nil {
		return usageFrom(err)
	}
	if c.Mode == "" {
		mode = 0
	}
	cl, err := a.connect()
	if err != nil {
		return err
	}
	fi, err := a.upload(ctx, cl, c.ID, t, mode)
	if err != nil {
		return err
	}
	if c.JSON {
		return a.json(wire.NewFileInfo(fi))
	}
	_, err = fmt.Fprintf(a.stdout, "%s: %s\n", inert(fi.Path), humanize.Bytes(uint64(fi.Size)))
	return err
}

type downloadCmd struct {
	ID     string `arg:"" help:"Id of the sandbox."`
	Remote string `arg:"" help:"Absolute path of a file in the sandbox."`
	Local  string `arg:"" default:"." help:"File or folder on this machine, - for standard output (default: this folder)."`
	JSON   bool   `name:"json" help:"Print JSON."`
}

func (c *downloadCmd) Run(ctx context.Context, a *app) error {
	t, err := checked(transfer{c.Local, c.Remote})
	if err != nil {
		return err
	}
	if c.JSON && c.Local == "-" {
		return usageErrorf("--json and the file's content cannot both go to standard output")
	}
	cl, err := a.connect()
	if err != nil {
		return err
	}
	name, size, err := a.download(ctx, cl, c.ID, t)
	switch {
	case err != nil:
		return err
	case c.JSON:
		return a.json(map[string]any{"path": name, "size": size})
	case name == "-":
		return nil
	}
	_, err = fmt.Fprintf(a.stdout, "%s: %s\n", inert(name), humanize.Bytes(uint64(size)))
	return err
}

type lsCmd struct {
	ID   string `arg:"" help:"Id of the sandbox."`
	Path string `arg:"" default:"/root" help:"Absolute path of a folder (default /root)."`
	JSON bool   `name:"json" help:"Print JSON."`
}

func (c *lsCmd) Run(ctx context.Context, a *app) error {
	cl, err := a.connect()
	if err != nil {
		return err
	}
	files := []wire.FileInfo{}
	for after := ""; ; {
		page, next, err := cl.ListFiles(ctx, c.ID, c.Path, after, 0)
		if err != nil {
			return orSignal(ctx, err)
		}
		for _, fi := range page {
			files = append(files, wire.NewFileInfo(fi))
		}
		if next == "" {
			break
		}
		after = next
	}
	if c.JSON {
		return a.json(files)
	}
	rows := make([][]string, 0, len(files))
	for _, f := range files {
		name := path.Base(f.Path)
		if f.PathBase64 != nil {
			name = path.Base(string(f.PathBase64))
		}
		if f.Target != nil {
			name += " -> " + *f.Target
		}
		rows = append(rows, []string{f.Mode, f.Type, humanize.Bytes(uint64(f.Size)), f.ModifiedAt.Local().Format(time.DateTime), name})
	}
	return a.table([]string{"MODE", "TYPE", "SIZE", "CHANGED", "NAME"}, rows)
}
