package eqvps

import (
	"fmt"
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
