package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

// benchCmd measures this host. Every figure comes with a baseline of the same
// run, taken in turn with it, because hosts are shared and drift.
type benchCmd struct {
	N    int    `short:"n" default:"50" help:"How many sandboxes to create one after another (default 50)."`
	Only string `enum:",demand,standby,rate,calls,output,transfer,pause,memory" default:"" placeholder:"PART" help:"Measure one part only: demand, standby, rate, calls, output, transfer, pause or memory."`
	JSON bool   `name:"json" help:"Print one JSON object."`
}

// figure is one row of the report.
type figure struct {
	What     string  `json:"what"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit"`
	Bar      string  `json:"bar"` // what it is held against, as people read it
	Met      bool    `json:"met"`
	N        int     `json:"n"`
	Detail   string  `json:"detail,omitempty"`
	Baseline string  `json:"baseline,omitempty"`
}

// benchReport is one run.
type benchReport struct {
	Time    time.Time `json:"time"`
	Version string    `json:"version"`
	Host    string    `json:"host"`
	Monitor string    `json:"monitor"`
	Figures []figure  `json:"figures"`
}

func (c *benchCmd) Run(ctx context.Context, a *app) error {
	if c.N < 5 {
		return usageErrorf("-n must be at least 5: a median of fewer says nothing")
	}
	log := newLogger(a.stderr, "error", false)
	s, err := StartServer(ctx, ServerConfig{
		Listen: "127.0.0.1:0", Data: a.data, Images: a.images, SlotPool: 8, Logger: log,
		Progress: func(what string) { a.note("%s", what) },
	})
	if errors.Is(err, errLocked) {
		return fmt.Errorf("%w; stop that server, or measure in another folder with --data", err)
	}
	if err != nil {
		return err
	}
	defer s.Close(context.WithoutCancel(ctx))
	secret, err := os.ReadFile(filepath.Join(a.data, adminTokenName))
	if err != nil {
		return err
	}
	cl, err := client.New("http://"+s.Addr(), strings.TrimSpace(string(secret)))
	if err != nil {
		return err
	}
	b := &bench{server: s, client: cl, n: c.N, note: a.note}
	info := s.node.Info()
	report := benchReport{
		Time: time.Now().UTC().Truncate(time.Second), Version: eqvps.Version, Host: hostLine(),
		Monitor: fmt.Sprintf("%s %s, %s, -cpu %s", info.Monitor, info.Version, info.Accel, info.CPUModel),
	}
	if err := s.Prepare(ctx, eqvps.DefaultTariff); err != nil {
		return err
	}
	for _, part := range []struct {
		part, name string
		measure    func(context.Context) ([]figure, error)
	}{
		{"demand", "creates, one after another, restored on demand", b.onDemand},
		{"standby", "creates, one after another, with machines on standby", b.withStandby},
		{"rate", "creates, four at a time", b.parallel},
		{"calls", "calls into one sandbox", b.calls},
		{"output", "output of commands", b.output},
		{"transfer", "large files in and out", b.transfers},
		{"pause", "pauses of a sandbox that has changed much of its memory", b.pauses},
		{"memory", "memory of idle sandboxes", b.memory},
	} {
		if c.Only != "" && c.Only != part.part {
			continue
		}
		a.note("measuring: %s", part.name)
		figures, err := part.measure(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		report.Figures = append(report.Figures, figures...)
	}
	return c.print(a, report)
}

func (c *benchCmd) print(a *app, r benchReport) error {
	if c.JSON {
		return a.json(r)
	}
	err := a.fields([][2]string{
		{"time", r.Time.Format(time.RFC3339)}, {"version", r.Version}, {"host", r.Host}, {"monitor", r.Monitor},
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(a.stdout)
	rows := make([][]string, len(r.Figures))
	for i, f := range r.Figures {
		met := "met"
		if !f.Met {
			met = "MISSED"
		}
		rows[i] = []string{f.What, fmt.Sprintf("%.4g %s", f.Value, f.Unit), f.Bar, met, fmt.Sprint(f.N), f.Detail, f.Baseline}
	}
	return a.table([]string{"WHAT", "MEASURED", "BAR", "", "N", "DETAIL", "BASELINE"}, rows)
}

// hostLine tells what was measured on.
func hostLine() string {
	model := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				model = strings.TrimSpace(v)
				break
			}
		}
	}
	var memory string
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		var kb int
		if _, err := fmt.Sscanf(string(b), "MemTotal: %d kB", &kb); err == nil {
			memory = fmt.Sprintf(", %d GiB", kb>>20)
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	load, _ := os.ReadFile("/proc/loadavg")
	load1, _, _ := strings.Cut(string(load), " ")
	return fmt.Sprintf("%d × %s%s, Linux %s, load %s, fixed loop %d ms", runtime.NumCPU(), model, memory,
		strings.TrimSpace(string(kernel)), load1, fixedLoop().Milliseconds())
}

// fixedLoop times work that is the same everywhere, the best of three, so that
// figures of two runs can be held against each other although one host, or one
// hour, is slower than another.
func fixedLoop() time.Duration {
	best := time.Duration(1<<63 - 1)
	for range 3 {
		began := time.Now()
		x := uint32(1)
		for range 200_000_000 {
			x = x*1664525 + 1013904223
		}
		runtime.KeepAlive(x) // or the compiler leaves the loop out
		best = min(best, time.Since(began))
	}
	return best
}

// bench is what the measurements share.
type bench struct {
	server *Server
	client *client.Client
	n      int
	note   func(string, ...any)
}

func (b *bench) create(ctx context.Context) (string, error) {
	sb, err := b.client.Create(ctx, wire.CreateSandbox{})
	if err != nil {
		return "", err
	}
	return sb.ID, nil
}

func (b *bench) delete(ctx context.Context, id string) error {
	_, err := b.client.Delete(context.WithoutCancel(ctx), id)
	return err
}

// exec runs a command that must succeed.
func (b *bench) exec(ctx context.Context, id string, argv ...string) error {
	r, err := b.client.Exec(ctx, id, wire.ExecRequest{Argv: argv})
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("%v exits with %d: %s", argv, r.ExitCode, r.Stderr)
	}
	return err
}

// sample is a series of measured times.
type sample []time.Duration

// at returns the time that a share p (0 to 1) of the sample stays below.
func (s sample) at(p float64) time.Duration {
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}

func (s sample) median() time.Duration { return s.at(0.5) }

func (s sample) tail() string {
	return fmt.Sprintf("p95 %s", s.at(0.95).Round(100*time.Microsecond))
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// atMost makes a row for a time that should stay below a bar.
func atMost(what string, s sample, bar time.Duration) figure {
	return figure{
		What: what + ", p50", Value: milliseconds(s.median()), Unit: "ms", Bar: "≤ " + bar.String(),
		Met: s.median() <= bar, N: len(s), Detail: s.tail(),
	}
}

func execArgv(argv ...string) wire.ExecRequest { return wire.ExecRequest{Argv: argv} }

// principal is the administrator, for calls past REST.
func (b *bench) principal(ctx context.Context) (context.Context, error) {
	secret, err := os.ReadFile(filepath.Join(b.server.cfg.Data, adminTokenName))
	if err != nil {
		return nil, err
	}
	p, err := b.server.svc.Authenticate(ctx, strings.TrimSpace(string(secret)))
	if err != nil {
		return nil, err
	}
	return eqvps.WithPrincipal(ctx, p), nil
}
