package eqvps

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestEphemeralCharge(t *testing.T) {
	small, err := DefaultTariffs.Find("small")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		running time.Duration
		want    MicroUSD
	}{
		{0, 0},                  // it never ran
		{-time.Second, 0},       // a clock went back
		{time.Millisecond, 550}, // the minimum of 60 s
		{60 * time.Second, 550},
		{60*time.Second + 1, 559}, // 61 whole seconds: 559.17
		{61 * time.Second, 559},
		{time.Hour, 33_000},
		{24 * time.Hour, 792_000},
	} {
		if got := EphemeralCharge(small.Hourly, c.running); got != c.want {
			t.Errorf("%s of small cost %d µ$, want %d", c.running, got, c.want)
		}
	}
}

// TestChargeNeverFalls: more time never costs less, and never more than a
// second's worth above the exact price.
func TestChargeNeverFalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hourly := MicroUSD(rapid.Int64Range(1, 1_000_000).Draw(t, "hourly"))
		a := time.Duration(rapid.Int64Range(1, int64(30*24*time.Hour)).Draw(t, "a"))
		b := a + time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "more"))
		x, y := EphemeralCharge(hourly, a), EphemeralCharge(hourly, b)
		if x > y {
			t.Fatalf("%s cost %d, %s cost %d", a, x, b, y)
		}
		exact := float64(hourly) * max(a, MinBilledTime).Hours()
		if d := float64(x) - exact; d < -0.5 || d > float64(hourly)/3600+0.5 {
			t.Fatalf("%s at %d an hour cost %d, exactly %f", a, hourly, x, exact)
		}
	})
}

func TestMoneyIsShownWithAllItsPlaces(t *testing.T) {
	for m, want := range map[MicroUSD]string{559: "$0.000559", 0: "$0.000000", -1_500_000: "-$1.500000", 12 * USD: "$12.000000"} {
		if got := m.String(); got != want {
			t.Errorf("%d is shown as %s, want %s", int64(m), got, want)
		}
	}
}

func TestPersistentCharge(t *testing.T) {
	small, err := DefaultTariffs.Find("small")
	if err != nil {
		t.Fatal(err)
	}
	at := func(s string) time.Time {
		v, err := time.Parse(time.DateTime, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for name, c := range map[string]struct {
		intervals [][2]string
		hours     float64
	}{
		"never ran":              {nil, 0},
		"a moment":               {[][2]string{{"2026-01-01 00:00:00", "2026-01-01 00:00:01"}}, 1},
		"an hour":                {[][2]string{{"2026-01-01 00:00:00", "2026-01-01 01:00:00"}}, 1},
		"a second more":          {[][2]string{{"2026-01-01 00:00:00", "2026-01-01 01:00:01"}}, 2},
		"a pause starts no hour": {[][2]string{{"2026-01-01 00:00:00", "2026-01-01 00:10:00"}, {"2026-01-02 00:00:00", "2026-01-02 00:50:00"}}, 1},
		"a clock went back":      {[][2]string{{"2026-01-01 01:00:00", "2026-01-01 00:00:00"}}, 0},
		"30 days in one month":   {[][2]string{{"2026-01-01 00:00:00", "2026-01-31 00:00:00"}}, 547.5},
		"500 hours of a month":   {[][2]string{{"2026-01-01 00:00:00", "2026-01-21 20:00:00"}}, 500},
		// 360 hours each: no month reaches its cap.
		"30 days over two months": {[][2]string{{"2026-01-17 00:00:00", "2026-02-16 00:00:00"}}, 720},
		// The hour that began in January is January's, which is full.
		"an hour across the months": {[][2]string{{"2026-01-01 00:00:00", "2026-01-31 23:30:00"}, {"2026-01-31 23:30:00", "2026-02-01 00:29:00"}}, 548.5},
	} {
		var ran RunTime
		for _, i := range c.intervals {
			ran = ran.Add(at(i[0]), at(i[1]))
		}
		if got, want := PersistentCharge(small.Hourly, ran), MicroUSD(c.hours*float64(small.Hourly)); got != want {
			t.Errorf("%s: %d µ$, want %d (%v h)", name, got, want, c.hours)
		}
	}
	if got := PersistentCharge(16_501, RunTime{"2026-01": 730 * time.Hour}); got != 9_034_298 { // 9,034,297.5
		t.Errorf("half a micro-dollar is rounded to %d", got)
	}
}

// TestRunTimeDoesNotDependOnCuts: however an interval is cut into pieces, the
// time by month is the same, and so is the price.
func TestRunTimeDoesNotDependOnCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(rapid.Int64Range(0, int64(365*24*time.Hour)).Draw(t, "from")))
		length := rapid.Int64Range(0, int64(62*24*time.Hour)).Draw(t, "length")
		to := from.Add(time.Duration(length))
		whole := RunTime(nil).Add(from, to)
		var cut RunTime
		at := from
		for at.Before(to) {
			next := at.Add(time.Duration(rapid.Int64Range(1, int64(20*24*time.Hour)).Draw(t, "piece")))
			if next.After(to) {
				next = to
			}
			cut = cut.Add(at, next)
			at = next
		}
		if whole.Total() != time.Duration(length) || cut.Total() != whole.Total() || PersistentCharge(33_000, cut) != PersistentCharge(33_000, whole) {
			t.Fatalf("%v, in pieces %v", whole, cut)
		}
	})
}
