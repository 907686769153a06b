package httpapi_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
)

func (f *fake) change(ctx context.Context, id string, change func(*eqvps.Sandbox) error) (*eqvps.Sandbox, error) {
	sb, err := f.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if sb.Ended() {
		return nil, eqvps.Errorf(eqvps.CodeSandboxEnded, "The sandbox has ended (%s).", sb.Reason)
	}
	if err := change(sb); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, sb.NewEvents...)
	sb.NewEvents = nil
	for i := range f.list {
		if f.list[i].ID == id {
			f.list[i] = sb
		}
	}
	return sb, nil
}

func (f *fake) Extend(ctx context.Context, id string, e eqvps.Extend) (*eqvps.Sandbox, error) {
	if err := e.Validate(); err != nil {
		return nil, err
	}
	return f.change(ctx, id, func(sb *eqvps.Sandbox) error {
		sb.Note(epoch, eqvps.EventExtended, "", "")
		return e.Apply(sb)
	})
}

func (f *fake) KeepAlive(ctx context.Context, id string) (*eqvps.Sandbox, error) {
	return f.change(ctx, id, func(sb *eqvps.Sandbox) error { sb.LastActive = epoch.Add(time.Minute); return nil })
}

func (f *fake) Pause(ctx context.Context, id string) (*eqvps.Sandbox, error) {
	return f.change(ctx, id, func(sb *eqvps.Sandbox) error {
		if sb.Mode != eqvps.Persistent {
			return eqvps.Errorf(eqvps.CodeWrongMode, "An ephemeral sandbox cannot be paused.")
		}
		sb.State, sb.PausedAt, sb.PauseReason = eqvps.StatePaused, epoch, eqvps.ReasonCall
		sb.Note(epoch, eqvps.EventPaused, eqvps.ReasonCall, "")
		return nil
	})
}

func (f *fake) Resume(ctx context.Context, id string, fromDisk bool) (*eqvps.Sandbox, error) {
	return f.change(ctx, id, func(sb *eqvps.Sandbox) error {
		kind := eqvps.EventResumed
		if fromDisk {
			kind = eqvps.EventRebooted
		}
		sb.Run(epoch)
		sb.Note(epoch, kind, eqvps.ReasonCall, "")
		return nil
	})
}

func (f *fake) SetNetwork(ctx context.Context, id string, p eqvps.NetworkPolicy) (*eqvps.Sandbox, error) {
	return f.change(ctx, id, func(sb *eqvps.Sandbox) error { sb.Network = p; return nil })
}

func (f *fake) Events(ctx context.Context, id string, after int64, limit int) (out []eqvps.Event, err error) {
	if _, err := f.Get(ctx, id); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, e := range f.events {
		if e.Seq = int64(i + 1); e.SandboxID == id && e.Seq > after && len(out) < limit {
			out = append(out, e)
		}
	}
	return out, nil
}

func (f *fake) Drain(context.Context) (int, error) { return 2, f.err }

// TestLifetime walks a persistent sandbox through its life.
func TestLifetime(t *testing.T) {
	f := newFake()
	base := f.server(t) + api
	resp, body := send(t, "POST", base+"/sandboxes", `{"mode":"persistent","idle_timeout":600}`)
	if resp.StatusCode != 201 || !strings.Contains(body, `"mode":"persistent"`) || !strings.Contains(body, `"ttl":2592000`) || !strings.Contains(body, `"paused_at":null`) {
		t.Fatalf("%s: %s", resp.Status, body)
	}
	persistent := f.list[0].ID
	ephemeral := f.sandbox(t)
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/sandboxes/ID/pause", "", 200, `"state":"paused"`},
		{"GET", "/sandboxes/ID", "", 200, `"pause_reason":"call"`},
		{"POST", "/sandboxes/ID/resume", "", 200, `"state":"running"`},
		{"POST", "/sandboxes/ID/resume", `{"from_disk":true}`, 200, `"pause_reason":null`},
		{"POST", "/sandboxes/ID/resume", `{"from_disk":"yes"}`, 400, "from_disk"},
		{"POST", "/sandboxes/OTHER/pause", "", 409, `"error":"wrong_mode"`},
		{"POST", "/sandboxes/" + absent + "/pause", "", 404, "sandbox_not_found"},
		{"POST", "/sandboxes/OTHER/extend", `{"seconds":60,"idle_timeout":60}`, 422, "at most 0 more"},
		{"POST", "/sandboxes/OTHER/extend", `{"idle_timeout":60}`, 200, `"idle_timeout":60`},
		{"POST", "/sandboxes/OTHER/extend", `{"seconds":0}`, 422, "seconds must be 1 or more"},
		{"POST", "/sandboxes/OTHER/extend", `{"seconds":1.5}`, 400, "whole number"},
		{"POST", "/sandboxes/OTHER/extend", `{"seconds":9000000000000000000}`, 422, "more"},
		{"POST", "/sandboxes/OTHER/extend", `{}`, 400, "Say what to extend"},
		{"POST", "/sandboxes/OTHER/extend", ``, 400, "empty"},
		{"POST", "/sandboxes/OTHER/keep-alive", ``, 200, `"last_active_at":"2026-07-28T10:01:00Z"`},
		{"GET", "/sandboxes/ID/events?limit=1", "", 200, `"has_more":true`},
		{"GET", "/sandboxes/ID/events?after=1", "", 200, `{"seq":2,"at":"2026-07-28T10:00:00Z","kind":"resumed","reason":"call"}`},
		{"GET", "/sandboxes/ID/events?after=-1", "", 400, "after"},
		{"GET", "/sandboxes/ID/events?limit=0", "", 400, "limit"},
		{"GET", "/sandboxes/" + foreign + "/events", "", 404, "sandbox_not_found"},
		{"GET", "/sandboxes/OTHER", "", 200, `"network":{"mode":"open"}`},
		{"PUT", "/sandboxes/OTHER/network", `{"mode":"none"}`, 200, `"network":{"mode":"none"}`},
		{"PUT", "/sandboxes/OTHER/network", `{"mode":"restricted","allow":[{"cidr":"192.0.2.0/24","ports":"443"},{"cidr":"198.51.100.7","ports":"53","protocol":"udp"},{"cidr":"203.0.113.0/24"}]}`, 200,
			`{"mode":"restricted","allow":[{"cidr":"192.0.2.0/24","ports":"443","protocol":"tcp"},{"cidr":"198.51.100.7/32","ports":"53","protocol":"udp"},{"cidr":"203.0.113.0/24","protocol":"any"}]}`},
		{"PUT", "/sandboxes/OTHER/network", `{"deny":[{"cidr":"192.0.2.1"}]}`, 200, `"mode":"open","deny":`},
		{"PUT", "/sandboxes/OTHER/network", `{"mode":"closed"}`, 422, "none or restricted"},
		{"PUT", "/sandboxes/OTHER/network", `{"mode":"none","allow":[{"cidr":"192.0.2.1"}]}`, 422, "takes no such list"},
		{"PUT", "/sandboxes/OTHER/network", `{"mode":"restricted","allow":[{"cidr":"api.example.com"}]}`, 422, "rules by name are not offered"},
		{"PUT", "/sandboxes/OTHER/network", `{"mode":"restricted","allow":[{"cidr":"192.0.2.1/24"}]}`, 422, "write 192.0.2.0/24"},
		{"PUT", "/sandboxes/OTHER/network", `{"mode":"restricted","allow":[{"cidr":"2001:db8::/32"}]}`, 422, "not IPv4"},
		{"PUT", "/sandboxes/OTHER/network", `{"mode":"restricted","allow":[{"cidr":"192.0.2.1","ports":"0"}]}`, 422, "from 1 to 65535"},
		{"PUT", "/sandboxes/OTHER/network", `{"mode":"restricted","allow":[{"cidr":"192.0.2.1","ports":"9-8"}]}`, 422, "from 1 to 65535"},
		{"PUT", "/sandboxes/OTHER/network", `{"mode":"restricted","allow":[{"cidr":"192.0.2.1","ports":"70000"}]}`, 422, "from 1 to 65535"},
		{"PUT", "/sandboxes/OTHER/network", `{"mode":"restricted","allow":[{"cidr":"192.0.2.1","protocol":"icmp"}]}`, 422, "tcp, udp or any"},
		{"PUT", "/sandboxes/OTHER/network", `{"mode":"restricted","allow":[` + strings.Repeat(`{"cidr":"192.0.2.1"},`, 64) + `{"cidr":"192.0.2.1"}]}`, 422, "at most 64"},
		{"POST", "/sandboxes", `{"network":{"mode":"none"}}`, 201, `"network":{"mode":"none"}`},
		{"POST", "/sandboxes", `{"network":{"mode":"off"}}`, 422, "none or restricted"},
		{"POST", "/drain", "", 200, `{"paused":2}`},
	} {
		resp, body := send(t, c.method, base+strings.NewReplacer("ID", persistent, "OTHER", ephemeral).Replace(c.path), c.body)
		if resp.StatusCode != c.status || !strings.Contains(body, c.want) {
			t.Errorf("%s %s %s: %d, want %d with %q: %s", c.method, c.path, c.body, resp.StatusCode, c.status, c.want, body)
		}
		if resp.StatusCode >= http.StatusBadRequest {
			checkError(t, resp, body)
		}
	}
}
