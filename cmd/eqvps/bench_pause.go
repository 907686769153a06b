package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// The bars of a pause and a resume, and what the guest has changed of its
// memory by then.
const (
	barPause  = 700 * time.Millisecond
	barResume = 300 * time.Millisecond
	dirtyMiB  = 100
)

// pauses measures how long a sandbox takes to be put away and to be back, over
// REST: to the first answer of its agent, and to the end of a first command.
func (b *bench) pauses(ctx context.Context) (_ []figure, err error) {
	sb, err := b.client.Create(ctx, wire.CreateSandbox{Mode: string(eqvps.Persistent)})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.delete(ctx, sb.ID)) }()
	hold := fmt.Sprintf(`python3 -c 'import time
b = b"x" * (%d << 20)
open("/tmp/held", "w").close()
time.sleep(1e6)' >/dev/null 2>&1 & until [ -e /tmp/held ]; do sleep 0.1; done`, dirtyMiB)
	if err := b.exec(ctx, sb.ID, "bash", "-c", hold); err != nil {
		return nil, err
	}
	tariff, err := eqvps.DefaultTariffs.Find(eqvps.DefaultTariff)
	if err != nil {
		return nil, err
	}
	var paused, resumed, ran, bare sample
	for i := range max(5, b.n/5) {
		began := time.Now()
		if _, err := b.client.Pause(ctx, sb.ID); err != nil {
			return nil, err
		}
		paused = append(paused, time.Since(began))
		began = time.Now()
		if _, err := b.client.Resume(ctx, sb.ID, false); err != nil {
			return nil, err
		}
		if _, err := b.client.Ping(ctx, sb.ID); err != nil {
			return nil, err
		}
		resumed = append(resumed, time.Since(began))
		if err := b.exec(ctx, sb.ID, "true"); err != nil {
			return nil, err
		}
		ran = append(ran, time.Since(began))
		took, err := b.server.node.Baseline(ctx, fmt.Sprintf("bench-%d", i), tariff, "true")
		if err != nil {
			return nil, err
		}
		bare = append(bare, took)
	}
	what := fmt.Sprintf("of a sandbox with %d MiB changed", dirtyMiB)
	back := atMost("resume to first answer "+what, resumed, barResume)
	back.Baseline = inTurn{bare: bare}.baseline()
	back.Detail += fmt.Sprintf("; to the end of a first command p50 %.0f ms", milliseconds(ran.median()))
	return []figure{atMost("pause "+what, paused, barPause), back}, nil
}
