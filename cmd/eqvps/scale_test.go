//go:build !soak

package main

import (
	"time"

	"github.com/eqvps/eqvps/wire"
)

// What `make soak` does in full and `make test` scaled down. Each name has its
// other value in scale_soak_test.go.

// uploadSizes are files that have to come back as they went.
var uploadSizes = []int{0, 1, 17_000, 19_000, 1 << 20, 16<<20 + 1}

// lateTimeouts are timeouts of a command that would take 70 s; zero is the default.
var lateTimeouts = []wire.Seconds{1}

// createCuts is when clients give up on a create, and how many each time.
var createCuts = []time.Duration{5 * time.Millisecond, 50 * time.Millisecond, 150 * time.Millisecond, 400 * time.Millisecond, time.Second}

// serverCuts is how long after the first of several creates the server is killed.
var serverCuts = []time.Duration{50 * time.Millisecond, 400 * time.Millisecond}

const (
	// orphans is how many commands leave a child behind.
	orphans = 100
	// standbyAge is how long a machine has stood by before it is used, and
	// clockApart the time between two readings of its clock.
	standbyAge = 5 * time.Second
	clockApart = 2 * time.Second
	// tmpTariff has a disk for tmpMiB, which is more than its memory.
	tmpTariff = "micro"
	tmpMiB    = 600
	// taskLines is how many lines a task prints, one every lineMillis.
	taskLines  = 250
	lineMillis = 50
	// raceFor is how long callers race for one sandbox.
	raceFor = 15 * time.Second
	// hangingGuests tells whether to wait for the end of machines that answer
	// nobody, which takes as long as they may be idle and a minute.
	hangingGuests = false
)
