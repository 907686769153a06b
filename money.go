package eqvps

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// MicroUSD is an amount of money in millionths of a US dollar. All arithmetic
// with money is on these integers.
type MicroUSD int64

// USD is one dollar.
const USD MicroUSD = 1_000_000

// String renders the amount in dollars with six places, e.g. "$0.000559".
func (m MicroUSD) String() string {
	sign := ""
	if m < 0 {
		sign, m = "-", -m
	}
	return fmt.Sprintf("%s$%d.%06d", sign, m/USD, m%USD)
}

// MinBilledTime is the least an ephemeral sandbox is charged for.
const MinBilledTime = 60 * time.Second

// EphemeralCharge is the price of an ephemeral sandbox that ran for the given
// time in all: whole seconds rounded up, at least 60, times the hourly rate,
// rounded half up once. It is a pure function of the whole running time, so it
// does not depend on when or how often it is computed. A sandbox that never
// ran is free.
func EphemeralCharge(hourly MicroUSD, running time.Duration) MicroUSD {
	if running <= 0 {
		return 0
	}
	seconds := int64((max(running, MinBilledTime) + time.Second - 1) / time.Second)
	return MicroUSD((seconds*int64(hourly)*2 + 3600) / 7200)
}

// RunTime is how long a sandbox has run in each UTC calendar month, by
// "2006-01". It is never changed in place.
type RunTime map[string]time.Duration

// Add returns r with an interval added, divided among the months it touches. An
// interval whose end is not after its start, as a clock that was stepped back
// makes one, adds nothing.
func (r RunTime) Add(from, to time.Time) RunTime {
	out := maps.Clone(r)
	if out == nil {
		out = RunTime{}
	}
	from, to = from.UTC(), to.UTC()
	for from.Before(to) {
		end := time.Date(from.Year(), from.Month()+1, 1, 0, 0, 0, 0, time.UTC)
		if to.Before(end) {
			end = to
		}
		out[from.Format("2006-01")] += end.Sub(from)
		from = end
	}
	return out
}

// Total is the whole running time.
func (r RunTime) Total() (sum time.Duration) {
	for _, d := range r {
		sum += d
	}
	return sum
}

// MaxBilledHalfHours is the most that a persistent sandbox is charged for in
// one calendar month, in half hours: 730 hours less 25 percent, 547.5 hours.
const MaxBilledHalfHours = 1095

// PersistentCharge is the price of a persistent sandbox that ran for the given
// time: the started hours of its whole running time, so that a pause starts no
// new hour, each in the month in which it started, at most MaxBilledHalfHours a
// month, times the hourly rate, rounded half up once. Like EphemeralCharge it is
// a pure function.
func PersistentCharge(hourly MicroUSD, ran RunTime) MicroUSD {
	var run time.Duration
	var hours, billed int64 // started so far; half hours to pay
	for _, month := range slices.Sorted(maps.Keys(ran)) {
		run += ran[month]
		started := int64((run + time.Hour - 1) / time.Hour)
		billed += min(2*(started-hours), MaxBilledHalfHours)
		hours = started
	}
	return MicroUSD((billed*int64(hourly) + 1) / 2)
}
