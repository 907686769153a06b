// Package wire holds the JSON of the REST interface: what goes over the wire,
// shared by the server that speaks it and the Go client.
//
// Field names and meanings are stable: clients in the field rely on them.
// Times are RFC 3339 in UTC, durations are seconds unless a name says
// otherwise, and bytes that need not be text travel as base64 in fields whose
// name ends in _base64. Every amount comes twice: as integer micro-dollars to
// calculate with, and as a number of dollars to read.
package wire

import (
	"time"

	"github.com/eqvps/eqvps"
)

// Prefix is the path below which the interface lives.
const Prefix = "/api/v1/eqvps"

// Headers that answers carry.
const (
	HeaderRequestID      = "X-Request-Id"
	HeaderTokenExpiresAt = "X-Token-Expires-At"
)

// Error is the body of every answer that is not a success.
type Error struct {
	Code       string `json:"error" doc:"Stable, machine-readable code."`
	Message    string `json:"message" doc:"One sentence for people: what is wrong."`
	Fix        string `json:"fix" doc:"What to do about it."`
	Next       string `json:"next" doc:"The call that helps, as METHOD /path below the API's root; empty when none does."`
	RequestID  string `json:"request_id" doc:"Quote it to the operator: the log holds the cause under it."`
	RetryAfter int    `json:"retry_after,omitempty" doc:"Seconds to wait before trying again. Present only where the request had no effect, so that repeating it is safe."`
}

// Sandbox is one sandbox.
type Sandbox struct {
	ID             string     `json:"id" doc:"Its id: sb_ and 20 hex digits."`
	Mode           string     `json:"mode" doc:"How it lives and is billed: ephemeral (by the second, deleted when idle) or persistent (by the started hour, can be paused)."`
	Tariff         string     `json:"tariff" doc:"Its size; see GET /sandboxes/tariffs."`
	Image          string     `json:"image" doc:"Id of the image it runs."`
	State          string     `json:"state" doc:"starting, running, pausing, paused, resuming, deleting or deleted."`
	Reason         *string    `json:"reason" doc:"Why it ended: deleted, idle, ttl, balance, cpu_abuse, oom, host_lost or error; null until then."`
	EnvKeys        []string   `json:"env_keys" nullable:"false" doc:"Names of its environment variables, secrets included. Values are never returned."`
	Network        Network    `json:"network" doc:"What it may reach, besides what no sandbox may."`
	IdleTimeout    int64      `json:"idle_timeout" doc:"Seconds without use after which it is deleted, or paused if it is persistent; 0: never."`
	TTL            int64      `json:"ttl" doc:"Seconds it may live in all."`
	CreatedAt      time.Time  `json:"created_at"`
	StartedAt      *time.Time `json:"started_at" doc:"When it became usable; null: not yet, or never."`
	ExpiresAt      time.Time  `json:"expires_at" doc:"When its time to live is over."`
	LastActiveAt   time.Time  `json:"last_active_at" doc:"When it was last used."`
	EndedAt        *time.Time `json:"ended_at"`
	PausedAt       *time.Time `json:"paused_at" doc:"When it was paused; null: it is not."`
	PauseReason    *string    `json:"pause_reason" doc:"Why it is paused: call, idle, shutdown, balance, cpu_abuse, oom, host_lost or error. One that was paused by call, balance or cpu_abuse waits to be resumed; others go on when they are used."`
	RunningSeconds float64    `json:"running_seconds" doc:"How long it has been usable, without pauses."`
	Price
	Bill
}

// Price is an hourly rate.
type Price struct {
	HourlyMicroUSD  int64   `json:"hourly_microusd" doc:"Price of an hour in millionths of a dollar."`
	PricePerHourUSD float64 `json:"price_per_hour_usd" doc:"The same in dollars."`
}

// Bill is what a sandbox has cost.
type Bill struct {
	BilledMicroUSD int64   `json:"billed_microusd" doc:"Cost so far in millionths of a dollar, the minimum included."`
	BilledUSD      float64 `json:"billed_usd" doc:"The same in dollars."`
}

func dollars(m eqvps.MicroUSD) float64 { return float64(m) / float64(eqvps.USD) }

func price(m eqvps.MicroUSD) Price {
	return Price{HourlyMicroUSD: int64(m), PricePerHourUSD: dollars(m)}
}

func bill(m eqvps.MicroUSD) Bill { return Bill{BilledMicroUSD: int64(m), BilledUSD: dollars(m)} }

// seconds renders a duration to the millisecond.
func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

func optional[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func optionalTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// NewSandbox renders a record as of now.
func NewSandbox(sb *eqvps.Sandbox, now time.Time) Sandbox {
	keys := sb.EnvKeys
	if keys == nil {
		keys = []string{}
	}
	return Sandbox{
		ID: sb.ID, Mode: string(sb.Mode), Tariff: sb.Tariff, Image: sb.Image,
		State: string(sb.State), Reason: optional(string(sb.Reason)), EnvKeys: keys, Network: NewNetwork(sb.Network),
		IdleTimeout: int64(sb.IdleTimeout / time.Second), TTL: int64(sb.TTL / time.Second),
		CreatedAt: sb.CreatedAt.UTC(), StartedAt: optionalTime(sb.StartedAt), ExpiresAt: sb.ExpiresAt().UTC(),
		LastActiveAt: sb.LastActive.UTC(), EndedAt: optionalTime(sb.EndedAt),
		PausedAt: optionalTime(sb.PausedAt), PauseReason: optional(string(sb.PauseReason)),
		RunningSeconds: seconds(sb.Running(now)), Price: price(sb.Hourly), Bill: bill(sb.Cost(now)),
	}
}

// CreateSandbox asks for a sandbox. Everything is optional.
type CreateSandbox struct {
	Mode        string            `json:"mode,omitempty" doc:"ephemeral (the default): billed by the second with a minimum of 60 s, deleted when idle." example:"ephemeral"`
	Tariff      string            `json:"tariff,omitempty" doc:"Its size; the default is small. See GET /sandboxes/tariffs." example:"small"`
	Image       string            `json:"image,omitempty" doc:"Name or id of the image; left out: the server's default."`
	IdleTimeout *int64            `json:"idle_timeout,omitempty" doc:"Seconds without use after which it is deleted: 10 to 86400, default 300. A persistent one is paused instead, and goes on when it is used; without it it never is."`
	TTL         *int64            `json:"ttl,omitempty" doc:"Seconds it may live in all: 10 to 86400, the default; of a persistent one, pauses included, to 2592000."`
	Env         map[string]string `json:"env,omitempty" doc:"Variables for every command in it: at most 64, 64 KiB each and 256 KiB in all. Only their names are ever returned."`
	EnvBase64   map[string][]byte `json:"env_base64,omitempty" doc:"More of them, whose values need not be text."`
	Secrets     []string          `json:"secrets,omitempty" nullable:"false" doc:"Names of the account's secrets that it gets as variables, or [\"*\"] for all of them; the default is none. env wins over a secret of the same name." example:"[\"API_KEY\"]"`
	Network     *Network          `json:"network,omitempty" doc:"What it may reach; the default is open."`
}

// Domain returns what the request asks for.
func (c CreateSandbox) Domain() (eqvps.CreateSandbox, error) {
	env, err := joinEnv(c.Env, c.EnvBase64)
	if err != nil {
		return eqvps.CreateSandbox{}, err
	}
	network, err := c.Network.Domain()
	return eqvps.CreateSandbox{
		Mode: eqvps.Mode(c.Mode), Tariff: c.Tariff, Image: c.Image,
		IdleTimeout: span(c.IdleTimeout), TTL: span(c.TTL), Env: env, Secrets: c.Secrets, Network: network,
	}, err
}

// span turns optional seconds into a duration. Zero means the default in the
// domain, so a zero that was written out becomes a value that is refused there,
// like every other that is out of range.
func span(s *int64) time.Duration {
	const most = int64(1<<63-1) / int64(time.Second)
	switch {
	case s == nil:
		return 0
	case *s <= 0:
		return -1
	}
	return time.Duration(min(*s, most)) * time.Second
}

// SandboxList is one page of sandboxes, newest first.
type SandboxList struct {
	Data    []Sandbox `json:"data" nullable:"false"`
	HasMore bool      `json:"has_more" doc:"More follow: ask again with after set to the last id."`
}

// Usage is what a sandbox has used so far.
type Usage struct {
	RunningSeconds    float64 `json:"running_seconds" doc:"How long it has been usable."`
	CPUSeconds        float64 `json:"cpu_seconds" doc:"Processor time of the whole machine."`
	EgressBytes       uint64  `json:"egress_bytes" doc:"Bytes sent out to the network."`
	EstimatedTotalUSD float64 `json:"estimated_total_usd" doc:"What it costs in all if it is deleted now, the minimum included."`
	Price
	Bill
}

// NewUsage renders usage.
func NewUsage(u eqvps.Usage) Usage {
	return Usage{
		RunningSeconds: seconds(u.Running), CPUSeconds: seconds(u.CPUTime), EgressBytes: u.EgressBytes,
		EstimatedTotalUSD: dollars(u.Cost), Price: price(u.Hourly), Bill: bill(u.Cost),
	}
}

// Pong is a sign of life.
type Pong struct {
	OK         bool    `json:"ok"`
	DurationMS float64 `json:"duration_ms" doc:"How long the sandbox took to answer."`
}
