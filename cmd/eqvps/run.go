package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

type runCmd struct {
	commandFlags
	Tariff   string   `placeholder:"NAME" help:"Size of the sandbox: ${tariffs} (default ${tariff})."`
	Timeout  int      `default:"${maxexec}" placeholder:"SECONDS" help:"Seconds until the command and all its children are killed, 1 to ${maxexec} (default ${maxexec})."`
	Upload   []string `sep:"none" placeholder:"LOCAL:REMOTE" help:"Copy a file into the sandbox before the command. Repeatable."`
	Download []string `sep:"none" placeholder:"REMOTE:LOCAL" help:"Copy a file out of the sandbox after the command, also when it failed. Repeatable."`
	Summary  bool     `help:"Tell at the end how it went, on standard error."`
	Command  []string `arg:"" name:"file-or-command" passthrough:"partial" help:"FILE and its arguments (.py, .js, .mjs, .cjs, .sh, or with a #! line); or -- and a command, run as it is without a shell."`
}

// Help is shown by `eqvps run --help`.
func (runCmd) Help() string {
	return `The exit code is the command's: 128+n for signal n, 124 at the timeout. 125 means that the sandbox or eqvps itself failed.

The server is the one that EQVPS_BASE_URL names, else the one on this machine, else one that lives as long as this command. In the last case the image is built first if it is missing.`
}

// guestHome is where a file is put and where it runs.
const guestHome = "/root"

// Lives of the sandbox of one run. They matter only when this process dies
// before it can delete it.
const (
	runIdleTimeout = 60 * time.Second
	runTTL         = time.Hour
)

// deleteTimeout bounds the deletion of the sandbox.
const deleteTimeout = 30 * time.Second

// job is a run worked out: what to copy and what to run.
type job struct {
	tariff  string
	uploads []upload
	outputs []transfer
	req     wire.ExecRequest
}

type upload struct {
	transfer
	mode os.FileMode // 0 keeps the local permissions
}

func (c *runCmd) Run(ctx context.Context, a *app) error {
	j, err := c.job(a)
	if err != nil {
		return err
	}
	began := time.Now()
	h, err := a.host(ctx, c.Tariff)
	if err != nil {
		return own(orSignal(ctx, err))
	}
	o, err := a.runJob(ctx, h, j, c.JSON)
	err = errors.Join(err, h.close(ctx))
	if o.complete() {
		err = errors.Join(err, c.tell(a, o, time.Since(began)))
	}
	if err != nil {
		return own(err)
	}
	return exitWith(o.result.Code)
}

// job reads the command line. Whatever is wrong with it is found here.
func (c *runCmd) job(a *app) (j job, err error) {
	if j.req.Argv, err = c.argv(&j); err != nil {
		return j, err
	}
	j.tariff = c.Tariff
	if _, err := eqvps.DefaultTariffs.Find(c.Tariff); err != nil && os.Getenv(envBaseURL) == "" {
		return j, usageFrom(err)
	}
	more, err := parseAll(c.Upload, parseUpload)
	if err != nil {
		return j, err
	}
	for _, t := range more {
		j.uploads = append(j.uploads, upload{transfer: t})
	}
	for _, u := range j.uploads {
		if _, err := os.Stat(u.local); err != nil {
			return j, own(localError(u.local, err))
		}
	}
	if j.outputs, err = parseAll(c.Download, parseDownload); err != nil {
		return j, err
	}
	return j, c.fill(a, &j.req, c.Timeout)
}

// argv is what is run: the command after --, or a file's interpreter.
func (c *runCmd) argv(j *job) ([]string, error) {
	if c.Command[0] == "--" {
		if len(c.Command) == 1 {
			return nil, usageErrorf("there is no command after --")
		}
		return c.Command[1:], nil
	}
	local := c.Command[0]
	remote := path.Join(guestHome, filepath.Base(local))
	interpreter, err := interpreterOf(local)
	if err != nil {
		return nil, err
	}
	argv := append([]string{remote}, c.Command[1:]...)
	mode := os.FileMode(0o755)
	if interpreter != "" {
		argv = append([]string{interpreter}, argv...)
		mode = 0
	}
	j.uploads = append(j.uploads, upload{transfer{local, remote}, mode})
	return argv, nil
}

var interpreters = map[string]string{
	".py": "python3", ".js": "node", ".mjs": "node", ".cjs": "node", ".sh": "bash",
}

// interpreterOf tells what runs a file: by its extension, or "" when its own
// first line says so.
func interpreterOf(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", own(localError(name, err))
	}
	defer f.Close()
	if in, ok := interpreters[filepath.Ext(name)]; ok {
		return in, nil
	}
	head, err := bufio.NewReader(f).Peek(2)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return "", own(localError(name, err))
	case string(head) == "#!":
		return "", nil
	}
	return "", usageErrorf("nothing tells what runs %s: give it a #! line or one of the extensions .py, .js, .mjs, .cjs, .sh, or write `eqvps run --upload FILE:/root/FILE -- PROGRAM /root/FILE`", name)
}

// outcome is how a run went.
type outcome struct {
	result *eqvps.ExecResult // nil: the command did not come to its end
	ready  time.Duration     // from asking for the sandbox to having it
	record *wire.Sandbox     // after its end; nil: it could not be deleted
}

func (o *outcome) complete() bool { return o != nil && o.result != nil && o.record != nil }

// runJob does the job in a sandbox of its own, which is deleted in any case.
func (a *app) runJob(ctx context.Context, h *host, j job, capture bool) (o *outcome, err error) {
	idle, ttl := int64(runIdleTimeout/time.Second), int64(runTTL/time.Second)
	began := time.Now()
	sb, err := a.create(ctx, h.Client, wire.CreateSandbox{Tariff: j.tariff, IdleTimeout: &idle, TTL: &ttl})
	if err != nil {
		return nil, orSignal(ctx, err)
	}
	o = &outcome{ready: time.Since(began)}
	release, err := h.claim(sb.ID)
	defer func() {
		gone, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
		defer cancel()
		var derr error
		if o.record, derr = h.Delete(gone, sb.ID); derr != nil {
			o.record = nil
			derr = fmt.Errorf("the sandbox %s could not be deleted and ends by itself within %s: %w", sb.ID, span(runIdleTimeout), derr)
		} else {
			release()
		}
		err = errors.Join(err, derr)
	}()
	if err != nil {
		return o, err
	}
	for _, u := range j.uploads {
		if _, err := a.upload(ctx, h.Client, sb.ID, u.transfer, u.mode); err != nil {
			return o, err
		}
	}
	if o.result, err = a.exec(ctx, h.Client, sb.ID, j.req, capture); err != nil {
		return o, err
	}
	var errs []error
	for _, t := range j.outputs {
		if _, _, err := a.download(ctx, h.Client, sb.ID, t); err != nil {
			errs = append(errs, err)
		}
	}
	return o, errors.Join(errs...)
}

// runReport is what --json prints.
type runReport struct {
	wire.ExecResult
	SandboxID   string  `json:"sandbox_id"`
	ReadyMS     int64   `json:"ready_ms"` // from asking for the sandbox to having it
	TotalMS     int64   `json:"total_ms"` // the whole run, a server of its own included
	BilledUSD   float64 `json:"billed_usd"`
	BilledMicro int64   `json:"billed_microusd"`
}

func (c *runCmd) tell(a *app, o *outcome, total time.Duration) error {
	if c.Summary {
		a.note("exit code %d; the sandbox was ready in %.2f s, the command took %.2f s", o.result.Code, o.ready.Seconds(), o.result.Duration.Seconds())
		a.note("the sandbox is deleted; on tariff %s it would have cost %s", o.record.Tariff, eqvps.MicroUSD(o.record.BilledMicroUSD))
	}
	if !c.JSON {
		return nil
	}
	return a.json(runReport{
		ExecResult: wire.NewExecResult(o.result, false), SandboxID: o.record.ID,
		ReadyMS: o.ready.Milliseconds(), TotalMS: total.Milliseconds(),
		BilledUSD: o.record.BilledUSD, BilledMicro: o.record.BilledMicroUSD,
	})
}
