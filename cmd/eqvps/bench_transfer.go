package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// The bars of large transfers: their rate, and by how much this process, server
// and client in one, may grow meanwhile.
const (
	barTransfer  = 40.0 // MB/s
	barGrowthMiB = 32.0
	transferSize = 1 << 30
)

// transfers measures an upload and a download of a gibibyte, each with a
// sandbox of its own, so that each has a whole burst allowance. The baseline is
// what the guest itself makes of its disk.
func (b *bench) transfers(ctx context.Context) ([]figure, error) {
	debug.FreeOSMemory()
	before, err := peakMemory(true)
	if err != nil {
		return nil, err
	}
	up, diskUp, err := b.transfer(ctx, func(id string) error {
		content := io.LimitReader(rand.NewChaCha8([32]byte{1}), transferSize)
		_, err := b.client.Upload(ctx, id, "/root/big", 0, content, transferSize)
		return err
	}, "sh", "-c", "dd if=/dev/zero of=/root/written bs=1M count=256 conv=fsync 2>/dev/null; rm /root/written")
	if err != nil {
		return nil, err
	}
	down, diskDown, err := b.transfer(ctx, func(id string) error {
		content, _, err := b.client.Download(ctx, id, "/root/big")
		if err != nil {
			return err
		}
		defer content.Close()
		n, err := io.Copy(io.Discard, content)
		if err == nil && n != transferSize {
			err = fmt.Errorf("%d of %d bytes came", n, transferSize)
		}
		return err
	}, "sh", "-c", fmt.Sprintf("fallocate -l %d /root/big && dd if=/root/big of=/dev/null bs=1M count=256 iflag=direct 2>/dev/null", transferSize))
	if err != nil {
		return nil, err
	}
	after, err := peakMemory(false)
	if err != nil {
		return nil, err
	}
	row := func(what string, took, disk time.Duration) figure {
		rate := transferSize / 1e6 / took.Seconds()
		return figure{
			What: what, Value: rate, Unit: "MB/s", Bar: fmt.Sprintf("≥ %.0f MB/s", barTransfer), Met: rate >= barTransfer, N: 1,
			Detail: took.Round(10 * time.Millisecond).String(), Baseline: fmt.Sprintf("the guest's own disk %.0f MB/s", 268.4/disk.Seconds()),
		}
	}
	growth := max(0, after-before)
	return []figure{
		row("upload of 1 GiB over REST", up, diskUp),
		row("download of 1 GiB over REST", down, diskDown),
		{
			What: "growth of the server, its client included, meanwhile", Value: growth, Unit: "MiB", Bar: fmt.Sprintf("≤ %.0f MiB", barGrowthMiB),
			Met: growth <= barGrowthMiB, N: 1, Detail: fmt.Sprintf("peak %.0f MiB", after),
		},
	}, nil
}

// transfer times a transfer in a sandbox of its own, and before that a command
// that shows what the guest's disk does.
func (b *bench) transfer(ctx context.Context, move func(id string) error, disk ...string) (took, baseline time.Duration, err error) {
	id, err := b.create(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, b.delete(ctx, id)) }()
	began := time.Now()
	if err := b.exec(ctx, id, disk...); err != nil {
		return 0, 0, err
	}
	baseline = time.Since(began)
	began = time.Now()
	err = move(id)
	return time.Since(began), baseline, err
}

// peakMemory is the most memory that this process has had resident, in MiB;
// anew starts counting anew.
func peakMemory(anew bool) (float64, error) {
	if anew {
		if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
			return 0, err
		}
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(status) {
		if v, ok := strings.CutPrefix(string(line), "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 64)
			return kib / 1024, err
		}
	}
	return 0, errors.New("/proc/self/status has no VmHWM")
}
