package eqvps

import (
	"context"
	"time"
)

// Mode is how long a sandbox is meant to live and how it is billed.
type Mode string

// The modes. Ephemeral sandboxes are billed by the second and deleted when
// idle. Persistent ones are billed by the started hour, can be paused and come
// back after a restart of their host.
const (
	Ephemeral  Mode = "ephemeral"
	Persistent Mode = "persistent"
)

// State is where a sandbox is in its life.
type State string

// The states. A sandbox that ended is "deleted" with a Reason, one that is
// paused has a PauseReason.
const (
	StateStarting State = "starting"
	StateRunning  State = "running"
	StatePausing  State = "pausing"
	StatePaused   State = "paused"
	StateResuming State = "resuming"
	StateDeleting State = "deleting"
	StateDeleted  State = "deleted"
)

// Reason says why a sandbox ended, or was paused. The values are stable.
type Reason string

// The reasons.
const (
	ReasonCall     Reason = "call"     // paused by a call
	ReasonShutdown Reason = "shutdown" // paused because its host was about to go down

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

	EnvKeys     []string      // names of its variables; values live in the guest only
	IdleTimeout time.Duration // a persistent one is paused then; 0: never
	TTL         time.Duration

	CreatedAt   time.Time
	StartedAt   time.Time // when it became usable; zero: never
	LastActive  time.Time
	EndedAt     time.Time
	PausedAt    time.Time // when it was paused last; zero: it is not
	PauseReason Reason    // set while it is paused

	Network NetworkPolicy

	Hourly MicroUSD // the tariff's rate when it was created
	// Ran is the time it has been usable, without the interval that is open
	// since RunningSince. Zero: none is open.
	Ran          RunTime
	RunningSince time.Time

	// CPUTime and EgressBytes are the last known figures of all its machines,
	// Before those of its earlier ones.
	CPUTime     time.Duration
	EgressBytes uint64
	Before      MachineUsage

	// Sealed holds what a persistent sandbox needs to come back, encrypted.
	Sealed []byte

	// NewEvents are stored with the next change of the record.
	NewEvents []Event
}

// MachineUsage is what machines have used.
type MachineUsage struct {
	CPUTime     time.Duration
	EgressBytes uint64
}

// Note adds an event to those that are stored with the next change.
func (s *Sandbox) Note(at time.Time, kind EventKind, reason Reason, detail string) {
	s.NewEvents = append(s.NewEvents, Event{SandboxID: s.ID, At: at, Kind: kind, Reason: reason, Detail: detail})
}

// Run opens an interval of usable time.
func (s *Sandbox) Run(at time.Time) {
	s.State, s.RunningSince = StateRunning, at
	s.PausedAt, s.PauseReason = time.Time{}, ""
	if s.StartedAt.IsZero() {
		s.StartedAt = at
	}
}

// Halt closes the interval that is open, if one is.
func (s *Sandbox) Halt(at time.Time) {
	if s.RunningSince.IsZero() {
		return
	}
	s.Ran = s.Ran.Add(s.RunningSince, at)
	s.RunningSince = time.Time{}
}

// Wakes reports whether a paused sandbox goes on by itself when it is used.
// One that somebody or a rule has put to rest waits for a call.
func (s *Sandbox) Wakes() bool {
	switch s.PauseReason {
	case ReasonCall, ReasonCPUAbuse, ReasonBalance:
		return false
	}
	return true
}

// ExpiresAt is when its time to live is over.
func (s *Sandbox) ExpiresAt() time.Time {
	if s.StartedAt.IsZero() {
		return s.CreatedAt.Add(s.TTL)
	}
	return s.StartedAt.Add(s.TTL)
}

// Running is how long it has been usable in all, up to now or to its end.
func (s *Sandbox) Running(now time.Time) time.Duration { return s.ran(now).Total() }

// ran is the time it has been usable, an interval that is open included.
func (s *Sandbox) ran(now time.Time) RunTime {
	if s.RunningSince.IsZero() {
		return s.Ran
	}
	return s.Ran.Add(s.RunningSince, now)
}

// Cost is what its running time costs so far.
func (s *Sandbox) Cost(now time.Time) MicroUSD {
	if s.Mode == Persistent {
		return PersistentCharge(s.Hourly, s.ran(now))
	}
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
	Network NetworkPolicy
}

// Validate checks the request and fills in defaults.
func (c *CreateSandbox) Validate() error {
	switch c.Mode {
	case "":
		c.Mode = Ephemeral
	case Ephemeral, Persistent:
	default:
		return Errorf(CodeInvalidValue, "There is no mode %.40q; use \"ephemeral\" or \"persistent\".", string(c.Mode))
	}
	if c.Tariff == "" {
		c.Tariff = DefaultTariff
	}
	if c.TTL == 0 {
		c.TTL = c.Mode.MaxTTL()
	}
	if err := c.Mode.checkTTL(c.TTL); err != nil {
		return err
	}
	if c.IdleTimeout == 0 && c.Mode == Ephemeral {
		c.IdleTimeout = min(DefaultIdleTimeout, c.TTL)
	}
	if c.IdleTimeout != 0 {
		if err := checkIdleTimeout(c.IdleTimeout); err != nil {
			return err
		}
	}
	if err := c.Network.Validate(); err != nil {
		return err
	}
	if err := ValidateSecretNames(c.Secrets); err != nil {
		return err
	}
	return ValidateEnv(c.Env)
}

// MaxTTL is the longest life of a sandbox of this mode.
func (m Mode) MaxTTL() time.Duration {
	if m == Persistent {
		return MaxPersistentTTL
	}
	return MaxEphemeralTTL
}

func (m Mode) checkTTL(ttl time.Duration) error {
	if ttl < MinTTL || ttl > m.MaxTTL() {
		return Errorf(CodeInvalidValue, "ttl must be %d to %d seconds for mode %q.", seconds(MinTTL), seconds(m.MaxTTL()), string(m))
	}
	return nil
}

func checkIdleTimeout(d time.Duration) error {
	if d < MinIdleTimeout || d > MaxIdleTimeout {
		return Errorf(CodeInvalidValue, "idle_timeout must be %d to %d seconds.", seconds(MinIdleTimeout), seconds(MaxIdleTimeout))
	}
	return nil
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

// Extend is a change of how long a sandbox may live. Zero fields change
// nothing.
type Extend struct {
	By          time.Duration // added to the time to live
	IdleTimeout time.Duration // instead of the one it has
}

// Validate checks the request.
func (e Extend) Validate() error {
	if e.By == 0 && e.IdleTimeout == 0 {
		return Errorf(CodeInvalidRequest, "Say what to extend: seconds, idle_timeout or both.")
	}
	if e.By < 0 {
		return Errorf(CodeInvalidValue, "seconds must be 1 or more: a life can only be extended; delete the sandbox to end it.")
	}
	if e.IdleTimeout != 0 {
		return checkIdleTimeout(e.IdleTimeout)
	}
	return nil
}

// Apply changes a sandbox's times. CodeInvalidValue when it would live longer
// than its mode allows, counted from its start.
func (e Extend) Apply(s *Sandbox) error {
	if most := s.Mode.MaxTTL() - s.TTL; e.By > most {
		return Errorf(CodeInvalidValue, "The sandbox may live %d seconds in all, so it can be extended by at most %d more.", seconds(s.Mode.MaxTTL()), seconds(most))
	}
	s.TTL += e.By
	if e.IdleTimeout != 0 {
		s.IdleTimeout = e.IdleTimeout
	}
	return nil
}

// NewSandbox makes the record of a sandbox that is about to start. The request
// must be valid.
func NewSandbox(c CreateSandbox, by Principal, t Tariff, now time.Time) *Sandbox {
	sb := &Sandbox{
		ID: newID(sandboxPrefix), AccountID: by.AccountID, TokenID: by.TokenID,
		Mode: c.Mode, Tariff: t.Name, Hourly: t.Hourly, State: StateStarting,
		EnvKeys: EnvKeys(c.Env), IdleTimeout: c.IdleTimeout, TTL: c.TTL,
		Network: c.Network, CreatedAt: now, LastActive: now,
	}
	sb.Note(now, EventCreated, "", "")
	return sb
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
//
// Both methods that write store the record's NewEvents in the same transaction
// and leave it without any.
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
	// Extend lengthens a sandbox's life or changes its idle timeout. It is
	// activity. CodeInvalidValue beyond what its mode allows.
	Extend(ctx context.Context, id string, e Extend) (*Sandbox, error)
	// KeepAlive counts as activity and does nothing else.
	KeepAlive(ctx context.Context, id string) (*Sandbox, error)
	// Pause puts a persistent sandbox's memory and disk away; it is not billed
	// until it is resumed. Pausing a paused one is no error. Foreground commands
	// under way are ended. CodeWrongMode for an ephemeral one.
	Pause(ctx context.Context, id string) (*Sandbox, error)
	// Resume brings a paused sandbox back. fromDisk drops its memory and starts
	// it anew from its disk, also a running one. Resuming a running one is no
	// error.
	Resume(ctx context.Context, id string, fromDisk bool) (*Sandbox, error)
	// SetNetwork changes what a sandbox may reach: at once, also for connections
	// that it has.
	SetNetwork(ctx context.Context, id string, p NetworkPolicy) (*Sandbox, error)
	// Events returns at most limit events of a sandbox after a sequence number,
	// oldest first.
	Events(ctx context.Context, id string, after int64, limit int) ([]Event, error)
	// Drain readies the server for a stop of its host: it takes no new
	// sandboxes and pauses the persistent ones, which the next start resumes. It
	// returns how many it has paused. For administrators only.
	Drain(ctx context.Context) (paused int, err error)
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
