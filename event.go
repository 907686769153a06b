package eqvps

import (
	"context"
	"time"
)

// EventKind says what happened to a sandbox. The values are stable.
type EventKind string

// The kinds.
const (
	EventCreated        EventKind = "created"         // its record was made
	EventStarted        EventKind = "started"         // it became usable
	EventExtended       EventKind = "extended"        // its time to live or idle timeout was changed
	EventEnvChanged     EventKind = "env_changed"     // variables were set or removed
	EventNetworkChanged EventKind = "network_changed" // what it may reach was changed
	EventPaused         EventKind = "paused"          // its memory and disk were put away
	EventResumed        EventKind = "resumed"         // it goes on where it was paused
	EventRebooted       EventKind = "rebooted"        // it came back from its disk: what was in memory is lost
	EventFailed         EventKind = "failed"          // a pause or resume that did not succeed
	EventEnded          EventKind = "ended"           // it is over, for the reason given
)

// Event is one thing that happened to a sandbox.
type Event struct {
	Seq       int64 // order within the server, ascending
	SandboxID string
	At        time.Time
	Kind      EventKind
	Reason    Reason // why, where there is one
	Detail    string // a sentence for people; never holds a value of a variable
}

// EventLife is how long the events and the reason of a sandbox that has ended
// stay readable.
const EventLife = 30 * 24 * time.Hour

// MaxEvents are kept of one sandbox; the oldest go first.
const MaxEvents = 1000

// EventStore reads the events of sandboxes. They are written with the records:
// see Sandbox.Note.
type EventStore interface {
	// FindEvents returns at most limit events of a sandbox after a sequence
	// number, oldest first.
	FindEvents(ctx context.Context, sandboxID string, after int64, limit int) ([]Event, error)
	// ForgetEvents removes the events of sandboxes that ended before a time.
	ForgetEvents(ctx context.Context, before time.Time) error
}

// AliveStore remembers when the server was last there. It watches its machines,
// so whatever ran then is known to have run until then.
type AliveStore interface {
	NoteAlive(ctx context.Context, at time.Time) error
	// LastAlive returns the zero time when no server has noted one.
	LastAlive(ctx context.Context) (time.Time, error)
}
