package wire

import (
	"time"

	"github.com/eqvps/eqvps"
)

// Tariff is one size on offer.
type Tariff struct {
	Name      string  `json:"name"`
	VCPUs     float64 `json:"vcpus" doc:"Share of processors; bursts run faster."`
	GuestCPUs int     `json:"guest_cpus" doc:"Processors the sandbox sees."`
	MemoryMiB int     `json:"memory_mib"`
	DiskMiB   int     `json:"disk_mib"`
	Default   bool    `json:"default" doc:"Used when none is named."`
	Price
}

// Tariffs is what is on offer, how it is billed, and the limits.
type Tariffs struct {
	Currency string           `json:"currency"`
	Data     []Tariff         `json:"data" nullable:"false"`
	Billing  map[string]Model `json:"billing" doc:"By mode."`
	Limits   Limits           `json:"limits"`
}

// Model is how a mode is billed.
type Model struct {
	Unit           string `json:"unit"`
	MinimumSeconds int64  `json:"minimum_seconds"`
	Description    string `json:"description"`
}

// Limits are those every surface shares.
type Limits struct {
	ExecTimeoutDefault int64 `json:"exec_timeout_default_seconds"`
	ExecTimeoutMax     int64 `json:"exec_timeout_max_seconds"`
	CommandBytes       int64 `json:"command_bytes"`
	StdinBytes         int64 `json:"stdin_bytes"`
	OutputBytes        int64 `json:"output_bytes_per_stream"`
	InlineFileBytes    int64 `json:"inline_file_bytes"`
	FileBytes          int64 `json:"file_bytes"`
	UploadPartBytes    int64 `json:"upload_part_bytes"`
	LinkTTLDefault     int64 `json:"link_ttl_default_seconds"`
	LinkTTLMin         int64 `json:"link_ttl_min_seconds"`
	LinkTTLMax         int64 `json:"link_ttl_max_seconds"`
	PathBytes          int64 `json:"path_bytes"`
	TaskOutputBytes    int64 `json:"task_output_bytes_per_stream"`
	TaskReadBytes      int64 `json:"task_read_bytes_per_stream"`
	TasksRunning       int64 `json:"tasks_running_per_sandbox"`
	TasksKept          int64 `json:"tasks_kept_per_sandbox"`
	EnvVars            int64 `json:"env_vars"`
	EnvValueBytes      int64 `json:"env_value_bytes"`
	EnvBytes           int64 `json:"env_bytes"`
	Secrets            int64 `json:"secrets_per_account"`
	IdleTimeoutDefault int64 `json:"idle_timeout_default_seconds"`
	IdleTimeoutMin     int64 `json:"idle_timeout_min_seconds"`
	IdleTimeoutMax     int64 `json:"idle_timeout_max_seconds"`
	TTLMin             int64 `json:"ttl_min_seconds"`
	TTLMax             int64 `json:"ttl_max_seconds"`
	TTLMaxPersistent   int64 `json:"ttl_max_persistent_seconds"`
	EventsKept         int64 `json:"events_kept_per_sandbox"`
	EventsKeptSeconds  int64 `json:"events_kept_after_end_seconds"`
}

// NewTariffs renders a table of tariffs.
func NewTariffs(ts eqvps.Tariffs) Tariffs {
	out := Tariffs{
		Currency: "USD", Data: []Tariff{},
		Billing: map[string]Model{
			string(eqvps.Ephemeral): {
				Unit: "second", MinimumSeconds: int64(eqvps.MinBilledTime / time.Second),
				Description: "Total running time, rounded up to whole seconds, at least 60, times the hourly rate, rounded half up once to a millionth of a dollar. A sandbox that never became usable is free.",
			},
			string(eqvps.Persistent): {
				Unit: "hour", MinimumSeconds: int64(time.Hour / time.Second),
				Description: "Started hours of its running time without pauses, times the hourly rate, at most 547.5 hours a calendar month (UTC). A pause starts no new hour. A sandbox that never became usable is free.",
			},
		},
		Limits: Limits{
			ExecTimeoutDefault: int64(eqvps.DefaultExecTimeout / time.Second), ExecTimeoutMax: int64(eqvps.MaxExecTimeout / time.Second),
			CommandBytes: eqvps.MaxCommandBytes, StdinBytes: eqvps.MaxStdinBytes, OutputBytes: eqvps.MaxOutputBytes,
			InlineFileBytes: eqvps.MaxInlineFileBytes, FileBytes: eqvps.MaxFileBytes, UploadPartBytes: eqvps.MaxPartBytes,
			LinkTTLDefault: int64(eqvps.DefaultLinkTTL / time.Second), LinkTTLMin: int64(eqvps.MinLinkTTL / time.Second), LinkTTLMax: int64(eqvps.MaxLinkTTL / time.Second),
			PathBytes:       eqvps.MaxPathBytes,
			TaskOutputBytes: eqvps.TaskRetainBytes, TaskReadBytes: eqvps.MaxTaskReadBytes,
			TasksRunning: eqvps.MaxRunningTasks, TasksKept: eqvps.MaxTasks,
			EnvVars: eqvps.MaxEnvVars, EnvValueBytes: eqvps.MaxEnvValueBytes, EnvBytes: eqvps.MaxEnvBytes, Secrets: eqvps.MaxSecrets,
			IdleTimeoutDefault: int64(eqvps.DefaultIdleTimeout / time.Second), IdleTimeoutMin: int64(eqvps.MinIdleTimeout / time.Second),
			IdleTimeoutMax: int64(eqvps.MaxIdleTimeout / time.Second),
			TTLMin:         int64(eqvps.MinTTL / time.Second), TTLMax: int64(eqvps.MaxEphemeralTTL / time.Second), TTLMaxPersistent: int64(eqvps.MaxPersistentTTL / time.Second),
			EventsKept: eqvps.MaxEvents, EventsKeptSeconds: int64(eqvps.EventLife / time.Second),
		},
	}
	for _, t := range ts {
		out.Data = append(out.Data, Tariff{
			Name: t.Name, VCPUs: float64(t.MilliCPU) / 1000, GuestCPUs: t.VCPUs(), MemoryMiB: t.MemoryMiB, DiskMiB: t.DiskMiB,
			Default: t.Name == eqvps.DefaultTariff, Price: price(t.Hourly),
		})
	}
	return out
}

// Health is what a load balancer asks for.
type Health struct {
	Status  string `json:"status" example:"ok"`
	Version string `json:"version"`
}

// WhoAmI is who calls.
type WhoAmI struct {
	AccountID string    `json:"account_id"`
	TokenID   string    `json:"token_id"`
	TokenName string    `json:"token_name"`
	Admin     bool      `json:"admin" doc:"The token may act for every account."`
	ExpiresAt time.Time `json:"expires_at" doc:"When the token ends."`
	Version   string    `json:"version" doc:"Version of the server."`
}

// Token is a token's record; the secret is not part of it.
type Token struct {
	ID         string     `json:"id"`
	Name       string     `json:"name"`
	Admin      bool       `json:"admin"`
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  time.Time  `json:"expires_at"`
	LastUsedAt *time.Time `json:"last_used_at" doc:"To the minute; null: never."`
	RevokedAt  *time.Time `json:"revoked_at" doc:"null: it is not revoked."`
}

// NewToken renders a record.
func NewToken(t *eqvps.Token) Token {
	return Token{
		ID: t.ID, Name: t.Name, Admin: t.Admin, CreatedAt: t.CreatedAt.UTC(), ExpiresAt: t.ExpiresAt.UTC(),
		LastUsedAt: optionalTime(t.LastUsed), RevokedAt: optionalTime(t.RevokedAt),
	}
}

// TokenList is an account's tokens, newest first.
type TokenList struct {
	Data []Token `json:"data" nullable:"false"`
}

// CreateToken asks for a token.
type CreateToken struct {
	Name      string `json:"name" doc:"1 to 100 bytes, for people." example:"ci"`
	ExpiresIn *int64 `json:"expires_in,omitempty" doc:"Seconds it lives; the default is a year, the most are ten."`
}

// Life is how long the token is to live.
func (c CreateToken) Life() time.Duration {
	if c.ExpiresIn == nil {
		return eqvps.DefaultTokenLife
	}
	return span(c.ExpiresIn)
}

// NewSecret is a token that was just made.
type NewSecret struct {
	Token
	Secret string `json:"secret" doc:"The bearer token. It is shown this once."`
}

// Revoked tells that a token no longer works.
type Revoked struct {
	ID      string `json:"id"`
	Revoked bool   `json:"revoked"`
}
