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
