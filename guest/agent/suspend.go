package agent

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps/guest/internal/wire"
)

// endWait bounds the wait for foreground commands that were killed.
const endWait = 5 * time.Second

// foreground are the commands that belong to a session. While they are held,
// none runs and none begins.
type foreground struct {
	mu   sync.Mutex
	held bool
	next int
	ends map[int]context.CancelFunc
}

var errHeld = errors.New("the sandbox is being paused")

// enter admits a command. Its context ends when commands are held.
func (f *foreground) enter(ctx context.Context) (context.Context, func(), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held {
		return nil, nil, errHeld
	}
	ctx, cancel := context.WithCancel(ctx)
	if f.ends == nil {
		f.ends = map[int]context.CancelFunc{}
	}
	f.next++
	n := f.next
	f.ends[n] = cancel
	return ctx, func() {
		cancel()
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.ends, n)
	}, nil
}

// hold ends every command and admits no more until release.
func (f *foreground) hold() error {
	f.mu.Lock()
	f.held = true
	for _, end := range f.ends {
		end()
	}
	f.mu.Unlock()
	for deadline := time.Now().Add(endWait); ; time.Sleep(2 * time.Millisecond) {
		f.mu.Lock()
		left := len(f.ends)
		f.mu.Unlock()
		if left == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.New("a command that was killed does not end")
		}
	}
}

func (f *foreground) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = false
}

// What the agent does when the session ends.
type leaving int

const (
	stay    leaving = iota
	forget          // go to the gate as the template of others
	suspend         // go to the gate with all that is here, frozen
)

// session is a listener that knows when its session is over. The end is known
// here before the next session begins.
type session struct {
	net.Listener
	over <-chan struct{}
}

type sessionKey struct{}

func sessionContext(l net.Listener) context.Context {
	return context.WithValue(context.Background(), sessionKey{}, l.(session).over)
}

// suspend freezes all but the agent, and sends it to its gate. Whatever fails,
// and also when the session ends meanwhile, all goes on.
//
// The next session brings an identity or none begins. So no process of the
// sandbox runs between the last moment before a pause and the time and the
// randomness that come with the identity. The kernel does: it answers the
// network, and runs its timers.
func (a *Agent) suspend(w http.ResponseWriter, r *http.Request) error {
	a.suspending.Lock()
	defer a.suspending.Unlock()
	err := a.stop()
	if err == nil {
		a.mu.Lock()
		select {
		case <-r.Context().Value(sessionKey{}).(<-chan struct{}):
			err = net.ErrClosed // the next session may have begun
		default:
			a.leaving = suspend
		}
		a.mu.Unlock()
	}
	if err != nil {
		return errors.Join(err, a.goOn())
	}
	return reply(w, struct{}{})
}

// stop ends the commands of sessions, freezes the processes and writes to disk
// what they have written: should the memory of the paused machine be lost, its
// disk is all there is.
func (a *Agent) stop() error {
	if err := a.foreground.hold(); err != nil {
		return err
	}
	if err := a.freezer.freeze(); err != nil {
		return err
	}
	return syncDisk()
}

// goOn is the opposite of stop, and harmless without it.
func (a *Agent) goOn() error {
	err := a.freezer.thaw()
	a.foreground.release()
	return err
}

// syncDisk writes the machine's own file system to its disk, and no other: one
// that a frozen process provides (FUSE) would never answer.
func syncDisk() error {
	fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Syncfs(fd)
}

// begin takes the hello of a session.
func (a *Agent) begin(hello []byte, atGate bool) error {
	if len(hello) == 0 {
		if atGate {
			return errors.New("an identity is needed")
		}
		return nil
	}
	var id wire.Identity
	if err := id.Decode(hello); err != nil {
		return err
	}
	if err := a.cfg.Renew(id); err != nil {
		return err
	}
	if !id.KeepEnv {
		a.env.replace(variables(id.Env))
	}
	// Only now: see suspend.
	return a.goOn()
}
