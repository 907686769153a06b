package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/eqvps/eqvps"
)

// The bars.
const (
	barReady      = 150 * time.Millisecond
	barFirstExec  = 300 * time.Millisecond
	barBare       = 1.5
	barRate       = 10.0
	barPing       = 3 * time.Millisecond
	barLogin      = 1.2
	barOverhead   = 8 * time.Millisecond
	barStream     = 40.0
	barIdleMiB    = 35.0
	barUsedMiB    = 60.0
	idleSandboxes = 20
)

// onDemand measures creates that restore a machine each, and holds them against
// the baseline: the monitor's restore and the same command over the guest
// channel, without our server.
func (b *bench) onDemand(ctx context.Context) ([]figure, error) {
	m, err := b.sequential(ctx)
	if err != nil {
		return nil, err
	}
	ratio := float64(m.first.median()) / float64(m.bare.median())
	return []figure{
		atMost("create to ready, restored on demand", m.ready, barReady),
		atMost("create to first exec answer, restored on demand", m.first, barFirstExec),
		{
			What: "create to first exec on demand, against a bare restore", Value: ratio, Unit: "×", Bar: fmt.Sprintf("≤ %.1f ×", barBare),
			Met: ratio <= barBare, N: len(m.bare), Baseline: m.baseline(),
		},
	}, nil
}

// withStandby measures the same as the server is run by default. The baselines
// between two creates give it the time to make the next machine ready.
func (b *bench) withStandby(ctx context.Context) ([]figure, error) {
	b.server.keepReady(defaultStandby)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for b.server.node.Ready() < defaultStandby {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	m, err := b.sequential(ctx)
	if err != nil {
		return nil, err
	}
	ready := atMost("create to ready", m.ready, barReady)
	ready.Baseline = m.baseline()
	return []figure{ready, atMost("create to first exec answer", m.first, barFirstExec)}, nil
}

// inTurn is what sequential measured: creates and baselines by turns.
type inTurn struct{ ready, first, bare sample }

func (m inTurn) baseline() string {
	return fmt.Sprintf("bare restore and exec p50 %.0f ms, %s", milliseconds(m.bare.median()), m.bare.tail())
}

// sequential measures create to ready and create to first answer over REST.
func (b *bench) sequential(ctx context.Context) (m inTurn, err error) {
	const command = "true"
	tariff, err := eqvps.DefaultTariffs.Find(eqvps.DefaultTariff)
	if err != nil {
		return m, err
	}
	for i := range b.n {
		began := time.Now()
		id, err := b.create(ctx)
		if err != nil {
			return m, err
		}
		m.ready = append(m.ready, time.Since(began))
		err = b.exec(ctx, id, "bash", "-lc", command)
		m.first = append(m.first, time.Since(began))
		if err := errors.Join(err, b.delete(ctx, id)); err != nil {
			return m, err
		}
		took, err := b.server.node.Baseline(ctx, fmt.Sprintf("bench-%d", i), tariff, command)
		if err != nil {
			return m, err
		}
		m.bare = append(m.bare, took)
	}
	return m, nil
}

// parallel measures how many creates a second the host does, four at a time.
func (b *bench) parallel(ctx context.Context) ([]figure, error) {
	const workers = 4
	total := max(workers, b.n/workers*workers)
	ids := make([]string, total)
	errs := make([]error, total)
	next := make(chan int, total)
	for i := range total {
		next <- i
	}
	close(next)
	began := time.Now()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range next {
				ids[i], errs[i] = b.create(ctx)
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	for _, id := range ids {
		if id != "" {
			errs = append(errs, b.delete(ctx, id))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	rate := float64(total) / took.Seconds()
	return []figure{{
		What: "creates per second, 4 at a time", Value: rate, Unit: "/s", Bar: fmt.Sprintf("≥ %.0f /s", barRate),
		Met: rate >= barRate, N: total,
	}}, nil
}

// calls measures the ways into one running sandbox.
func (b *bench) calls(ctx context.Context) (_ []figure, err error) {
	id, err := b.create(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.delete(ctx, id)) }()
	var ping sample
	for range 4 * b.n {
		began := time.Now()
		if _, err := b.client.Ping(ctx, id); err != nil {
			return nil, err
		}
		ping = append(ping, time.Since(began))
	}
	as, err := b.principal(ctx)
	if err != nil {
		return nil, err
	}
	g, err := b.server.svc.Use(as, id)
	if err != nil {
		return nil, err
	}
	var login, plain, overhead sample
	for range b.n {
		for _, way := range []struct {
			flag string
			into *sample
		}{{"-lc", &login}, {"-c", &plain}} {
			st, err := g.Exec(as, eqvps.ExecRequest{Argv: []string{"bash", way.flag, "true"}}, func(eqvps.Stream, []byte) error { return nil })
			if err != nil {
				return nil, err
			}
			*way.into = append(*way.into, st.Duration)
		}
		began := time.Now()
		st, err := b.client.ExecStream(ctx, id, execArgv("true"), func(eqvps.Stream, []byte) error { return nil })
		if err != nil {
			return nil, err
		}
		overhead = append(overhead, time.Since(began)-st.Duration)
	}
	ratio := float64(login.median()) / float64(plain.median())
	return []figure{
		atMost("guest agent ping over REST", ping, barPing),
		{
			What: "bash -lc true against bash -c true, in the guest", Value: ratio, Unit: "×", Bar: fmt.Sprintf("≤ %.1f ×", barLogin),
			Met: ratio <= barLogin, N: len(login), Detail: fmt.Sprintf("p50 %.1f ms", milliseconds(login.median())),
			Baseline: fmt.Sprintf("bash -c p50 %.1f ms", milliseconds(plain.median())),
		},
		atMost("exec of true over REST, less its time in the guest", overhead, barOverhead),
	}, nil
}

// The output whose passing on is measured: text, as most output is, printed by
// a program that does little else.
const (
	printedMB = 10
	printSize = printedMB * 1_000_000
)

// output measures how fast what a command prints comes out, streamed and
// collected. The baseline is the same output over the guest channel, without
// our server.
func (b *bench) output(ctx context.Context) (_ []figure, err error) {
	id, err := b.create(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.delete(ctx, id)) }()
	const file = "/tmp/printed"
	if err := b.exec(ctx, id, "sh", "-c", fmt.Sprintf("yes 'What a program tells of its work, line by line.' | head -c %d > %s", printSize, file)); err != nil {
		return nil, err
	}
	as, err := b.principal(ctx)
	if err != nil {
		return nil, err
	}
	g, err := b.server.svc.Use(as, id)
	if err != nil {
		return nil, err
	}
	var streamed, collected, bare sample
	var got int64
	count := func(_ eqvps.Stream, p []byte) error { got += int64(len(p)); return nil }
	timed := func(into *sample, run func() error) error {
		began := time.Now()
		got = 0
		err := run()
		*into = append(*into, time.Since(began))
		if err == nil && got != printSize {
			err = fmt.Errorf("%d of %d bytes came", got, printSize)
		}
		return err
	}
	for range max(5, b.n/5) {
		err := errors.Join(
			timed(&streamed, func() error {
				_, err := b.client.ExecStream(ctx, id, execArgv("cat", file), count)
				return err
			}),
			timed(&bare, func() error {
				_, err := g.Exec(as, eqvps.ExecRequest{Argv: []string{"cat", file}}, count)
				return err
			}),
			timed(&collected, func() error {
				r, err := b.client.Exec(ctx, id, execArgv("cat", file))
				if err == nil {
					got = r.StdoutBytes
				}
				return err
			}),
		)
		if err != nil {
			return nil, err
		}
	}
	rate := func(s sample) float64 { return printedMB / s.median().Seconds() }
	row := func(what string, s sample) figure {
		return figure{
			What: what, Value: rate(s), Unit: "MB/s", Bar: fmt.Sprintf("≥ %.0f MB/s", barStream), Met: rate(s) >= barStream, N: len(s),
			Detail: "p50 " + s.median().Round(time.Millisecond).String() + ", " + s.tail(), Baseline: fmt.Sprintf("guest channel alone %.0f MB/s", rate(bare)),
		}
	}
	return []figure{
		row(fmt.Sprintf("exec printing %d MB, streamed", printedMB), streamed),
		row(fmt.Sprintf("exec printing %d MB, collected", printedMB), collected),
	}, nil
}

// memory measures what idle sandboxes cost the host: proportional set size of
// their monitors, before and after one command in each.
func (b *bench) memory(ctx context.Context) (_ []figure, err error) {
	var ids []string
	defer func() {
		for _, id := range ids {
			err = errors.Join(err, b.delete(ctx, id))
		}
	}()
	for range idleSandboxes {
		id, err := b.create(ctx)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	before, err := b.meanPSS(ids)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if err := b.exec(ctx, id, "bash", "-lc", "true"); err != nil {
			return nil, err
		}
	}
	after, err := b.meanPSS(ids)
	if err != nil {
		return nil, err
	}
	row := func(what string, mib, bar float64) figure {
		return figure{What: what, Value: mib, Unit: "MiB", Bar: fmt.Sprintf("≤ %.0f MiB", bar), Met: mib <= bar, N: len(ids), Detail: "mean PSS of the monitor"}
	}
	return []figure{
		row("memory of an idle sandbox", before, barIdleMiB),
		row("memory after one exec", after, barUsedMiB),
	}, nil
}

func (b *bench) meanPSS(ids []string) (float64, error) {
	var sum int
	for _, id := range ids {
		pid, err := b.server.node.MonitorPID(id)
		if err != nil {
			return 0, err
		}
		kb, err := pss(pid)
		if err != nil {
			return 0, err
		}
		sum += kb
	}
	return float64(sum) / 1024 / float64(len(ids)), nil
}

// pss returns a process's proportional set size in KiB: shared pages count by
// their share.
func pss(pid int) (int, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "Pss:"); ok {
			var kb int
			_, err := fmt.Sscan(rest, &kb)
			return kb, err
		}
	}
	return 0, errors.Join(errors.New("smaps_rollup has no line Pss"), lines.Err())
}
