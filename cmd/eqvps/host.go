package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
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
	server *Server      // nil: somebody else's
	users  *flock.Flock // nil: the server is elsewhere
}

// usersName is the lock file that every run on this machine's server holds
// shared. The run whose process is the server takes it exclusively before it
// closes, so that it never closes under another run, and a run that comes
// meanwhile waits and then finds that it has to be the server itself.
const usersName = "users"

// Waits of finding a server.
const (
	lockPoll    = 20 * time.Millisecond
	startupWait = 60 * time.Second // another process holds the folder, its socket is not there yet
)

// host finds a server or makes one.
func (a *app) host(ctx context.Context, tariff string) (*host, error) {
	if base := os.Getenv(envBaseURL); base != "" {
		c, err := connectTo(base)
		return &host{Client: c}, err
	}
	h := &host{}
	if err := h.join(ctx, a.data); err != nil {
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
func (h *host) join(ctx context.Context, data string) error {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return fmt.Errorf("the data folder cannot be made (%w); use sudo, or choose another with --data", err)
	}
	h.users = flock.New(filepath.Join(data, usersName))
	if _, err := h.users.TryRLockContext(ctx, lockPoll); err != nil {
		return fmt.Errorf("the data folder cannot be locked (%w); use sudo, or choose another with --data", err)
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
			h.Client, err = a.connectLocal()
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

// close lets go of the server, and ends it when it is this process's: after
// the last sandbox and the last run that use it, or at once when ctx ends.
func (h *host) close(ctx context.Context) error {
	if h.users == nil {
		return nil
	}
	defer h.users.Close()
	if h.server == nil {
		return nil
	}
	// Converting the lock is not atomic, which is fine: a run that gets in
	// between is waited for like any other.
	alone := errors.Join(h.users.Unlock(), h.server.Drain(ctx))
	if alone == nil {
		_, alone = h.users.TryLockContext(ctx, lockPoll)
	}
	if alone == nil {
		_ = h.server.Drain(ctx) // of one that was made meanwhile, by other clients than runs
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return h.server.Close(closing)
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
