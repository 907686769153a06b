package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/image"
	"github.com/eqvps/eqvps/wire"
)

// host is where a run happens: a client, and, where no server was there, a
// server that lives as long as runs on this machine need it.
type host struct {
	*client.Client
	data   string
	server *Server         // nil: somebody else's
	users  *flock.Flock    // nil: the server is elsewhere
	before map[string]bool // sandboxes that the server found; they are not waited for
}

// usersName is the lock file that every run on this machine's server holds
// shared. The run whose process is the server takes it exclusively before it
// closes, so that it never closes under another run, and a run that comes
// meanwhile waits and then finds that it has to be the server itself.
const usersName = "users"

// runsName is the folder in which every run on this machine keeps a locked file
// named for its sandbox: one that nobody holds any more was left by a run that
// was killed, and so was its sandbox.
const runsName = "runs"

// Waits of finding a server.
const (
	lockPoll    = 20 * time.Millisecond
	drainPoll   = 100 * time.Millisecond
	startupWait = 60 * time.Second // another process holds the folder, its socket is not there yet
)

// host finds a server or makes one.
func (a *app) host(ctx context.Context, tariff string) (*host, error) {
	if base := os.Getenv(envBaseURL); base != "" {
		c, err := connectTo(base)
		return &host{Client: c}, err
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("sandboxes on this machine need root; use sudo, or set %s and %s to use a server elsewhere", envBaseURL, envAPIKey)
	}
	h := &host{data: a.data}
	if err := h.join(ctx); err != nil {
		return nil, err
	}
	err := h.findOrStart(ctx, a)
	if err == nil && h.server != nil {
		err = a.prepare(ctx, h.server, tariff)
	}
	if err != nil {
		return nil, errors.Join(err, h.close(ctx))
	}
	return h, nil
}

// join takes part in the use of this machine's server.
func (h *host) join(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Join(h.data, runsName), 0o700); err != nil {
		return fmt.Errorf("the data folder cannot be made (%w); choose another with --data", err)
	}
	h.users = flock.New(filepath.Join(h.data, usersName))
	if _, err := h.users.TryRLockContext(ctx, lockPoll); err != nil {
		return fmt.Errorf("the data folder cannot be locked (%w); choose another with --data", err)
	}
	return nil
}

func (h *host) findOrStart(ctx context.Context, a *app) (err error) {
	deadline := time.Now().Add(startupWait)
	for {
		h.Client, err = a.connectLocal()
		var none errNoServer
		if !errors.As(err, &none) {
			return err
		}
		h.server, err = StartServer(ctx, ServerConfig{
			Data: a.data, Images: a.images, SlotPool: 1, Logger: slog.New(noteLog{a: a}),
			Progress: func(what string) { a.note("%s", what) },
		})
		if err == nil {
			if h.Client, err = a.connectLocal(); err == nil {
				err = h.lookAround(ctx)
			}
			return err
		}
		// Another process has the folder: its socket appears soon, or it fails.
		if !errors.Is(err, errLocked) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}

// lookAround deletes the sandboxes of runs that were killed, and remembers
// those that live on after an earlier server.
func (h *host) lookAround(ctx context.Context) error {
	left, err := filepath.Glob(filepath.Join(h.data, runsName, "*"))
	if err != nil {
		return err
	}
	for _, name := range left {
		l := flock.New(name)
		if ok, err := l.TryLock(); err != nil || !ok {
			continue // its run is at work
		}
		_, err := h.Delete(ctx, filepath.Base(name))
		if err == nil || eqvps.ErrorCode(err) == eqvps.CodeSandboxNotFound {
			err = os.Remove(name)
		}
		if err = errors.Join(err, l.Close()); err != nil {
			return err
		}
	}
	h.before = map[string]bool{}
	list, err := listAll(ctx, h.Client, client.ListOptions{})
	for _, sb := range list {
		h.before[sb.ID] = true
	}
	return err
}

// claim marks a sandbox as this run's. release is called once it is gone; a
// claim that is not released leaves the sandbox to a later run.
func (h *host) claim(id string) (release func(), err error) {
	release = func() {}
	if h.users == nil {
		return release, nil
	}
	name := filepath.Join(h.data, runsName, filepath.Base(id))
	l := flock.New(name)
	if _, err := l.TryLock(); err != nil {
		return release, fmt.Errorf("the sandbox cannot be noted down: %w", err)
	}
	return func() {
		os.Remove(name)
		_ = l.Close() // the process's end does the same
	}, nil
}

// close lets go of the server, and ends it when it is this process's: after
// the last run and the last sandbox that use it, or at once when ctx ends.
func (h *host) close(ctx context.Context) error {
	if h.users == nil {
		return nil
	}
	defer func() { _ = h.users.Close() }() // the process's end does the same
	if h.server == nil {
		return nil
	}
	// Converting the lock is not atomic, which is fine: a run that gets in
	// between is waited for like any other. The second wait is for what was
	// made meanwhile; runs have to stay outside for it, so it comes last.
	err := errors.Join(h.users.Unlock(), h.drain(ctx))
	if err == nil {
		_, err = h.users.TryLockContext(ctx, lockPoll)
	}
	if err == nil {
		err = h.drain(ctx)
	}
	if ctx.Err() != nil {
		err = nil // told elsewhere
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return errors.Join(err, h.server.Close(closing))
}

// drain waits for the sandboxes that were made while this server was there.
func (h *host) drain(ctx context.Context) error {
	for {
		list, err := listAll(ctx, h.Client, client.ListOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(list, func(sb wire.Sandbox) bool { return !h.before[sb.ID] }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(drainPoll):
		}
	}
}

// prepare makes what the first sandbox needs: image and template.
func (a *app) prepare(ctx context.Context, s *Server, tariff string) error {
	err := s.Prepare(ctx, tariff)
	if eqvps.ErrorCode(err) != eqvps.CodeUnknownImage {
		return err
	}
	a.note("building the image that sandboxes start from; this happens once")
	if _, err := a.buildImage(ctx, image.DefaultRecipe()); err != nil {
		return err
	}
	return s.Prepare(ctx, tariff)
}

// create starts a sandbox. Another run on this machine may be the server and
// still be building the image: then this one waits for the build.
func (a *app) create(ctx context.Context, c *client.Client, req wire.CreateSandbox) (*wire.Sandbox, error) {
	sb, err := c.Create(ctx, req)
	if eqvps.ErrorCode(err) != eqvps.CodeUnknownImage || os.Getenv(envBaseURL) != "" {
		return sb, err
	}
	if _, err := a.buildImage(ctx, image.DefaultRecipe()); err != nil {
		return nil, err
	}
	return c.Create(ctx, req)
}
