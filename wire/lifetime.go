package wire

import (
	"time"

	"github.com/eqvps/eqvps"
)

// Extend lengthens a sandbox's life or changes its idle timeout.
type Extend struct {
	Seconds     *int64 `json:"seconds,omitempty" doc:"Added to the time it may live, which in all is bounded by its mode: 86400 for ephemeral, 2592000 for persistent." example:"3600"`
	IdleTimeout *int64 `json:"idle_timeout,omitempty" doc:"Seconds without use, instead of those it has: 10 to 86400."`
}

// Domain returns what the request asks for.
func (e Extend) Domain() eqvps.Extend {
	return eqvps.Extend{By: span(e.Seconds), IdleTimeout: span(e.IdleTimeout)}
}

// Resume brings a paused sandbox back.
type Resume struct {
	FromDisk bool `json:"from_disk,omitempty" doc:"Drop what is in memory and start it anew from its disk, also when it runs."`
}

// SandboxEvent is one thing that happened to a sandbox.
type SandboxEvent struct {
	Seq    int64     `json:"seq" doc:"Order of events, ascending."`
	At     time.Time `json:"at"`
	Kind   string    `json:"kind" doc:"created, started, extended, env_changed, network_changed, paused, resumed, rebooted, failed or ended."`
	Reason *string   `json:"reason" doc:"Why, where there is a reason: that of a pause or an end."`
	Detail string    `json:"detail,omitempty" doc:"A sentence for people."`
}

// EventList is one page of events, oldest first.
type EventList struct {
	Data    []SandboxEvent `json:"data" nullable:"false"`
	HasMore bool           `json:"has_more" doc:"More follow: ask again with after set to the last seq."`
}

// NewEventList renders at most limit events.
func NewEventList(events []eqvps.Event, limit int) EventList {
	out := EventList{Data: []SandboxEvent{}, HasMore: len(events) > limit}
	for _, e := range events[:min(len(events), limit)] {
		out.Data = append(out.Data, SandboxEvent{
			Seq: e.Seq, At: e.At.UTC(), Kind: string(e.Kind), Reason: optional(string(e.Reason)), Detail: e.Detail,
		})
	}
	return out
}

// Drained is the answer of a server that is about to stop.
type Drained struct {
	Paused int `json:"paused" doc:"How many persistent sandboxes were paused."`
}
