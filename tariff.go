package eqvps

import (
	"strings"
)

// Tariff is a size of sandbox and its price.
type Tariff struct {
	Name      string
	MilliCPU  int // thousandths of a processor
	MemoryMiB int
	DiskMiB   int // size of the writable disk
	Hourly    MicroUSD
}

// VCPUs is how many processors the guest sees: the share rounded up.
func (t Tariff) VCPUs() int { return max(1, (t.MilliCPU+999)/1000) }

// DefaultTariff is used when a caller names none.
const DefaultTariff = "small"

// DefaultTariffs is the table on offer, smallest first.
var DefaultTariffs = Tariffs{
	{Name: "micro", MilliCPU: 250, MemoryMiB: 512, DiskMiB: 3 << 10, Hourly: 16_500},
	{Name: "small", MilliCPU: 500, MemoryMiB: 1 << 10, DiskMiB: 5 << 10, Hourly: 33_000},
	{Name: "standard", MilliCPU: 1000, MemoryMiB: 2 << 10, DiskMiB: 10 << 10, Hourly: 66_000},
	{Name: "plus", MilliCPU: 2000, MemoryMiB: 4 << 10, DiskMiB: 15 << 10, Hourly: 132_000},
	{Name: "pro", MilliCPU: 4000, MemoryMiB: 8 << 10, DiskMiB: 20 << 10, Hourly: 264_000},
	{Name: "max", MilliCPU: 8000, MemoryMiB: 16 << 10, DiskMiB: 40 << 10, Hourly: 528_000},
}

// Tariffs is a table of tariffs.
type Tariffs []Tariff

// Find returns the tariff of a name; "" is the default.
func (ts Tariffs) Find(name string) (Tariff, error) {
	if name == "" {
		name = DefaultTariff
	}
	names := make([]string, 0, len(ts))
	for _, t := range ts {
		if t.Name == name {
			return t, nil
		}
		names = append(names, t.Name)
	}
	return Tariff{}, Errorf(CodeUnknownTariff, "There is no tariff %.40q; choose one of %s.", name, strings.Join(names, ", "))
}
