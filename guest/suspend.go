package guest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/eqvps/eqvps/guest/internal/wire"
)

// suspendTimeout bounds a suspend, most of which is that the guest writes what
// it holds to its disk.
const suspendTimeout = 60 * time.Second

// ErrIdentitySent is part of the error of a Renew that failed so late that the
// guest may have taken its identity and gone on. Without it, a guest that was
// suspended still is.
var ErrIdentitySent = errors.New("the guest may have taken its identity")

// Suspend prepares a machine for a pause: commands in the foreground are ended,
// all other processes frozen, the disk is written, and the agent goes to its
// gate with variables and tasks as they are. The session is over then. Renew,
// on this machine or on what is restored of it, makes all go on, after entropy,
// clock and host name are new; no process runs before.
//
// What runs on the guest's monotonic clock, like the timeouts of tasks, stands
// still while the machine does.
//
// After an error the guest may be suspended or not; Renew is right in both
// cases, with Identity.KeepEnv to leave the variables alone.
func (c *Client) Suspend(ctx context.Context, dial DialFunc) error {
	if c.version < 3 {
		return fmt.Errorf("the guest's agent is too old to be paused: it speaks protocol version %d", c.version)
	}
	_, err := c.callWithin(ctx, suspendTimeout, wire.MaxReply, http.MethodPost, wire.PathSuspend, nil, nil)
	if err != nil {
		return err
	}
	return c.toGate(ctx, dial)
}
