package httpapi

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// TestHeartbeat: a stream of server-sent events that has nothing to tell says
// so now and then, until it is over; one event a line never does.
func TestHeartbeat(t *testing.T) {
	for _, sse := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			rec := httptest.NewRecorder()
			es := newEventStream(&answer{ResponseWriter: rec, rc: http.NewResponseController(rec)}, false, sse)
			told := func(what, want string) {
				t.Helper()
				synctest.Wait()
				es.mu.Lock()
				defer es.mu.Unlock()
				if !sse && what != "output" {
					want = ""
				}
				if diff := cmp.Diff(want, rec.Body.String()); diff != "" {
					t.Errorf("server-sent events: %v: %s (-want +got):\n%s", sse, what, diff)
				}
				rec.Body.Reset()
			}
			time.Sleep(heartbeat - 1)
			told("before its time", "")
			time.Sleep(heartbeat + 1)
			told("silence", ":\n\n:\n\n")
			time.Sleep(heartbeat / 2)
			if err := es.output(eqvps.Stdout, []byte("x")); err != nil {
				t.Fatal(err)
			}
			line := `{"type":"stdout","text":"x"}` + "\n"
			if sse {
				told("output", "event: stdout\ndata: "+line+"\n")
			} else {
				told("output", line)
			}
			time.Sleep(heartbeat - 1)
			told("less than that after output", "")
			time.Sleep(time.Nanosecond)
			told("silence after output", ":\n\n")
			if err := es.exit(wire.ExitStatus{}); err != nil {
				t.Fatal(err)
			}
			es.mu.Lock()
			rec.Body.Reset()
			es.mu.Unlock()
			es.close()
			time.Sleep(10 * heartbeat)
			told("the end", "")
		})
	}
}
