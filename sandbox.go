package eqvps

import (
	"context"
	"time"
)

// Mode is how long a sandbox is meant to live and how it is billed.
type Mode string

// The modes. Ephemeral sandboxes are billed by the second and deleted when
// idle.
const (
	Ephemeral  Mode = "ephemeral"
	Persistent Mode = "persistent"
)

// State is where a sandbox is in its life.
type State string

// The states. A sandbox that ended is "deleted" with a Reason.
const (
	StateStarting State = "starting"
	StateRunning  State = "running"
	StatePausing  State = "pausing"
	StatePaused   State = "paused"
	StateResuming State = "resuming"
	StateDeleting State = "deleting"
	StateDeleted  State = "deleted"
)

// Reason says why a sandbox ended. The values are stable.
type Reason string

// The reasons.
const (
	ReasonDeleted  Reason = "deleted"   // by a call
	ReasonIdle     Reason = "idle"      // nobody used it for its idle timeout
	ReasonTTL      Reason = "ttl"       // its time to live was over
	ReasonBalance  Reason = "balance"   // the account's balance was used up
	ReasonCPUAbuse Reason = "cpu_abuse" // it kept its share of processor full for too long
	ReasonOOM      Reason = "oom"       // its machine died for want of memory
	ReasonHostLost Reason = "host_lost" // its machine was gone when the server came back
	ReasonError    Reason = "error"     // it never became usable, or its machine died
)

// Sandbox is the record of one sandbox.
type Sandbox struct {
	ID        string
	AccountID string
	TokenID   string // the token that created it
	Mode      Mode
	Tariff    string
	Image     string // id of the image it runs
	State     State
	Reason    Reason // set once it ended

	EnvKeys     []string // names of its variables; values live in the guest only
	IdleTimeout time.Duration
	TTL         time.Duration

	CreatedAt  time.Time
	StartedAt  time.Time // when it became usable; zero: never
	LastActive time.Time
	EndedAt    time.Time

	Hourly MicroUSD // the tariff's rate when it was created

	CPUTime     time.Duration // last known figures of its machine
	EgressBytes uint64
}

// ExpiresAt is when its time to live is over.
func (s *Sandbox) ExpiresAt() time.Time {
	if s.StartedAt.IsZero() {
		return s.CreatedAt.Add(s.TTL)
	}
	return s.StartedAt.Add(s.TTL)
}

// Running is how long it has been usable, up to now or to its end.
func (s *Sandbox) Running(now time.Time) time.Duration {
	if s.StartedAt.IsZero() {
		return 0
	}
	end := now
	if !s.EndedAt.IsZero() {
		end = s.EndedAt
	}
	return max(0, end.Sub(s.StartedAt))
}

// Cost is what its running time costs so far.
func (s *Sandbox) Cost(now time.Time) MicroUSD {
	return EphemeralCharge(s.Hourly, s.Running(now))
}

// Ended reports whether it is over.
func (s *Sandbox) Ended() bool { return s.State == StateDeleted }

// CreateSandbox is what a caller may ask for. Zero values mean the defaults.
type CreateSandbox struct {
	Mode        Mode
	Tariff      string
	Image       string
	IdleTimeout time.Duration
	TTL         time.Duration
	Env         Env
	// Secrets names the account's secrets that it gets as variables: none unless
	// named, so that code nobody has read sees no more than it needs. Env wins
	// over a secret of the same name. AllSecrets alone stands for all.
	Secrets []string
}

// Validate checks the request and fills in defaults.
func (c *CreateSandbox) Validate() error {
	switch c.Mode {
	case "":
		c.Mode = Ephemeral
	case Ephemeral:
	case Persistent:
		return Errorf(CodeInvalidValue, "This server does not offer persistent sandboxes yet; use mode \"ephemeral\".")
	default:
		return Errorf(CodeInvalidValue, "There is no mode %.40q; use \"ephemeral\".", string(c.Mode))
	}
	if c.Tariff == "" {
		c.Tariff = DefaultTariff
	}
	if c.TTL == 0 {
		c.TTL = MaxEphemeralTTL
	}
	if c.TTL < MinTTL || c.TTL > MaxEphemeralTTL {
		return Errorf(CodeInvalidValue, "ttl must be %d to %d seconds.", int(MinTTL.Seconds()), int(MaxEphemeralTTL.Seconds()))
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = min(DefaultIdleTimeout, c.TTL)
	}
	if c.IdleTimeout < MinIdleTimeout || c.IdleTimeout > MaxEphemeralTTL {
		return Errorf(CodeInvalidValue, "idle_timeout must be %d to %d seconds.", int(MinIdleTimeout.Seconds()), int(MaxEphemeralTTL.Seconds()))
	}
	if err := ValidateSecretNames(c.Secrets); err != nil {
		return err
	}
	return ValidateEnv(c.Env)
}

// NewSandbox makes the record of a sandbox that is about to start. The request
// must be valid.
func NewSandbox(c CreateSandbox, by Principal, t Tariff, now time.Time) *Sandbox {
	return &Sandbox{
		ID: newID(sandboxPrefix), AccountID: by.AccountID, TokenID: by.TokenID,
		Mode: c.Mode, Tariff: t.Name, Hourly: t.Hourly, State: StateStarting,
		EnvKeys: EnvKeys(c.Env), IdleTimeout: c.IdleTimeout, TTL: c.TTL,
		CreatedAt: now, LastActive: now,
	}
}

// ValidSandboxID reports whether id has the form of a sandbox's id.
func ValidSandboxID(id string) bool { return validID(id, sandboxPrefix) }

// SandboxFilter selects sandboxes. Zero fields select all.
type SandboxFilter struct {
	AccountID string
	ID        string
	Ended     *bool
	After     string // page: only ids created before this one's record
	Limit     int    // 0: no limit
}

// SandboxStore keeps the records of sandboxes.
type SandboxStore interface {
	CreateSandbox(ctx context.Context, sb *Sandbox) error
	// UpdateSandbox reads the record, applies change and writes it back in one
	// transaction. An error of change leaves the record as it was.
	UpdateSandbox(ctx context.Context, id string, change func(*Sandbox) error) (*Sandbox, error)
	// FindSandboxes returns records, newest first.
	FindSandboxes(ctx context.Context, f SandboxFilter) ([]*Sandbox, error)
}

// SandboxService is what every skin (REST, MCP, CLI) calls. The caller is the
// Principal in ctx; another account's sandbox is as absent as one that never was.
type SandboxService interface {
	Create(ctx context.Context, c CreateSandbox) (*Sandbox, error)
	Get(ctx context.Context, id string) (*Sandbox, error)
	List(ctx context.Context, f SandboxFilter) ([]*Sandbox, error)
	// Delete ends a sandbox and returns its final record. Deleting one that has
	// ended is no error.
	Delete(ctx context.Context, id string) (*Sandbox, error)
	// Ping asks the guest agent for a sign of life; it is no activity.
	Ping(ctx context.Context, id string) error
	// Use gives access to a running sandbox's commands and files. Each call on
	// it counts as activity.
	Use(ctx context.Context, id string) (Guest, error)
	// SetEnv changes the variables of a running sandbox for the commands that
	// start from then on, and returns its record.
	SetEnv(ctx context.Context, id string, c EnvChange) (*Sandbox, error)
	// Usage tells what a sandbox has used so far.
	Usage(ctx context.Context, id string) (Usage, error)
}

// Guest is the inside of one running sandbox.
type Guest interface {
	Commander
	Filer
	Tasker
}

// Usage is what one sandbox has used.
type Usage struct {
	Running     time.Duration
	CPUTime     time.Duration // of the whole machine on its host
	EgressBytes uint64
	Hourly      MicroUSD
	Cost        MicroUSD
}
