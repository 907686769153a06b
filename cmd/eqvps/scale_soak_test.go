//go:build soak

package main

import (
	"time"

	"github.com/eqvps/eqvps/wire"
)

// The values of scale_test.go in full.

var uploadSizes = []int{0, 1, 17_000, 19_000, 1 << 20, 16<<20 + 1, 100 << 20}

var lateTimeouts = []wire.Seconds{1, 55, 0}

var createCuts = []time.Duration{5 * time.Millisecond, 50 * time.Millisecond, 150 * time.Millisecond, 400 * time.Millisecond, time.Second}

var serverCuts = []time.Duration{5 * time.Millisecond, 50 * time.Millisecond, 150 * time.Millisecond, 400 * time.Millisecond, time.Second}

const (
	orphans       = 300
	standbyAge    = 15 * time.Minute
	clockApart    = time.Minute
	tmpTariff     = "small"
	tmpMiB        = 1536
	taskLines     = 200
	lineMillis    = 1000
	raceFor       = 10 * time.Minute
	hangingGuests = true
)
