package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/control"
	"github.com/eqvps/eqvps/guest/agentbin"
	"github.com/eqvps/eqvps/httpapi"
	"github.com/eqvps/eqvps/image"
	"github.com/eqvps/eqvps/keyring"
	"github.com/eqvps/eqvps/node"
	"github.com/eqvps/eqvps/sqlite"
	"github.com/eqvps/eqvps/vmm/qemu"
)

// The files of a data folder.
const (
	lockName       = "lock"
	socketName     = "eqvps.sock"
	adminTokenName = "admin-token"
	linkKeyName    = "link-key"
	storeName      = "eqvps.db"
	auditName      = "audit.log"
	keyringName    = "keyring.json"
)

// ServerConfig is what a server is started with. The zero value of every field
// is its default.
type ServerConfig struct {
	Listen   string // TCP address; "" listens on the local socket only
	TLSCert  string // PEM file with the certificate for TCP, and the others up to the authority's; "": no TLS
	TLSKey   string // PEM file with its key
	Data     string // data folder, default /var/lib/eqvps
	Images   string // image store, default DATA/images
	SlotPool int    // network slots kept ready, default 4
	Standby  int    // machines of the default tariff kept ready, default 0
	// Overcommit and Burst are those of node.Config.
	Overcommit node.Overcommit
	Burst      time.Duration
	// CPUAbuseWindow is how long a sandbox may keep its processor full; see
	// control.Config.
	CPUAbuseWindow time.Duration
	Hosts          []string     // names by which a proxy passes requests to a loopback address
	Logger         *slog.Logger // default: slog's
	Progress       func(string) // told what long steps do
	// Step is called before every privileged step on the host; an error fails
	// it. For tests.
	Step func(label string) error
}

// defaultData is where a server keeps its data unless told otherwise.
const defaultData = "/var/lib/eqvps"

func (c *ServerConfig) fill() error {
	if c.Data == "" {
		c.Data = defaultData
	}
	abs, err := filepath.Abs(c.Data)
	if err != nil {
		return err
	}
	c.Data = abs
	if c.Images == "" {
		c.Images = filepath.Join(c.Data, "images")
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return nil
}

// Server is the whole service in one process: the quick start, the tests and
// production all run this type.
type Server struct {
	cfg    ServerConfig
	lock   *flock.Flock
	store  *sqlite.Store
	node   *node.Node
	svc    *control.Service
	http   *http.Server
	audit  *lumberjack.Logger
	tcp    net.Listener // nil when only the socket is served
	https  net.Listener // TLS over tcp; nil when it is plain
	socket net.Listener
	failed chan error
}

// errLocked is returned when another server uses the data folder.
var errLocked = errors.New("another server uses this data folder")

// StartServer takes the data folder, puts right what an earlier process left,
// and serves. On an error nothing stays behind.
func StartServer(ctx context.Context, cfg ServerConfig) (_ *Server, err error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("the server needs root to make machines and networks; run it with sudo")
	}
	if err := os.MkdirAll(cfg.Data, 0o700); err != nil {
		return nil, fmt.Errorf("the data folder cannot be made (%w); choose another with --data", err)
	}
	s := &Server{cfg: cfg, failed: make(chan error, 2)}
	s.lock = flock.New(filepath.Join(cfg.Data, lockName))
	if ok, err := s.lock.TryLock(); err != nil {
		return nil, fmt.Errorf("the data folder cannot be locked: %w", err)
	} else if !ok {
		return nil, fmt.Errorf("%w: %s", errLocked, cfg.Data)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close(context.WithoutCancel(ctx)))
		}
	}()
	// The port first: one that is taken should fail before anything is made.
	if cfg.Listen != "" {
		if s.tcp, err = net.Listen("tcp", cfg.Listen); err != nil {
			return nil, listenError(cfg.Listen, err)
		}
		if cfg.TLSCert != "" {
			if s.https, err = serveTLS(s.tcp, cfg.TLSCert, cfg.TLSKey, cfg.Logger); err != nil {
				return nil, err
			}
		}
	}
	agent, err := agentbin.Agent()
	if err != nil {
		return nil, err
	}
	if s.store, err = sqlite.Open(ctx, filepath.Join(cfg.Data, storeName)); err != nil {
		return nil, err
	}
	keys, err := s.openKeyring(ctx)
	if err != nil {
		return nil, err
	}
	s.node, err = node.New(ctx, node.Config{
		Dir: cfg.Data, Images: image.Open(cfg.Images), Monitor: qemu.New(), Agent: agent,
		SlotPool: cfg.SlotPool, Overcommit: cfg.Overcommit, Burst: cfg.Burst, Logger: cfg.Logger, Progress: cfg.Progress, Step: cfg.Step,
	})
	if err != nil {
		return nil, err
	}
	for _, w := range s.node.Info().Warnings {
		cfg.Logger.Warn(w)
	}
	s.svc = control.New(control.Config{
		Store: s.store, Host: s.node, Tariffs: eqvps.DefaultTariffs, Keys: keys, CPUAbuseWindow: cfg.CPUAbuseWindow, Logger: cfg.Logger,
	})
	if err := s.svc.Recover(ctx); err != nil {
		return nil, err
	}
	if err := s.writeAdminToken(ctx); err != nil {
		return nil, err
	}
	if cfg.Standby > 0 {
		s.keepReady(cfg.Standby)
	}
	return s, s.serve()
}

// openKeyring opens the server's key, or makes it.
func (s *Server) openKeyring(ctx context.Context) (*keyring.Ring, error) {
	path := filepath.Join(s.cfg.Data, keyringName)
	keys, err := keyring.Open(path)
	if err != nil || !keys.Made() {
		return keys, err
	}
	lost, err := s.store.HasSealed(ctx)
	if lost {
		s.cfg.Logger.Error("the key file was not there and is made anew; secrets and paused sandboxes of before cannot be read until the old one is put back", "file", path)
	}
	return keys, err
}

// keepReady keeps machines of the default tariff on standby.
func (s *Server) keepReady(count int) {
	if t, err := eqvps.DefaultTariffs.Find(eqvps.DefaultTariff); err == nil {
		s.node.KeepReady(t, count)
	}
}

func listenError(addr string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("the address %s is taken by another program; choose another with --listen", addr)
	}
	return fmt.Errorf("cannot listen on %s: %w", addr, err)
}

// serve opens the local socket and answers on it and on TCP.
func (s *Server) serve() error {
	path := s.SocketPath()
	// We hold the folder's lock, so a socket that is there is a dead one's.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var err error
	if s.socket, err = listenUnix(path); err != nil {
		return err
	}
	key, err := linkKey(filepath.Join(s.cfg.Data, linkKeyName))
	if err != nil {
		return err
	}
	base := ""
	switch {
	case s.https != nil:
		base = "https://" + s.Addr()
	case s.tcp != nil:
		base = "http://" + s.Addr()
	}
	s.audit = &lumberjack.Logger{Filename: filepath.Join(s.cfg.Data, auditName), MaxSize: auditMegabytes, MaxBackups: auditFiles}
	s.http = httpapi.NewServer(httpapi.New(httpapi.Config{
		Sandboxes: s.svc, Tokens: s.svc, Secrets: s.svc, Tariffs: eqvps.DefaultTariffs, Logger: s.cfg.Logger, Hosts: s.hosts(),
		Audit:   slog.New(slog.NewJSONHandler(s.audit, nil)),
		LinkKey: key, BaseURL: base,
	}), s.cfg.Logger)
	tcp := s.tcp
	if s.https != nil {
		tcp = s.https
	}
	for _, l := range []net.Listener{s.socket, tcp} {
		if l == nil {
			continue
		}
		go func() {
			if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				s.failed <- err
			}
		}()
	}
	return nil
}

// The audit log is kept in so many older files of such a size.
const (
	auditMegabytes = 64
	auditFiles     = 8
)

// hosts are the names that requests may address the server by, nil for any. On
// a loopback address a page in a browser could otherwise reach it through a name
// of its own that resolves there (DNS rebinding).
func (s *Server) hosts() []string {
	if s.tcp != nil && !s.tcp.Addr().(*net.TCPAddr).IP.IsLoopback() {
		return nil
	}
	return append([]string{"localhost", "127.0.0.1", "::1"}, s.cfg.Hosts...)
}

// listenUnix listens on a socket that only root can use. The path may be
// longer than the 107 bytes an address holds, so it is reached by its folder.
func listenUnix(path string) (net.Listener, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	old := syscall.Umask(0o177)
	defer syscall.Umask(old)
	l, err := net.Listen("unix", shortPath(dir, path))
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // Close removes it by its real path
	return l, nil
}

func shortPath(dir *os.File, path string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
}

// writeAdminToken leaves a valid token of the administrator in the data folder.
func (s *Server) writeAdminToken(ctx context.Context) error {
	path := filepath.Join(s.cfg.Data, adminTokenName)
	have, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	secret, fresh, err := s.svc.AdminToken(ctx, strings.TrimSpace(string(have)))
	if err != nil || !fresh {
		return err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(secret+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// SocketPath is the local socket, for clients on this machine.
func (s *Server) SocketPath() string { return filepath.Join(s.cfg.Data, socketName) }

// Addr is the TCP address served, "" when there is none.
func (s *Server) Addr() string {
	if s.tcp == nil {
		return ""
	}
	return s.tcp.Addr().String()
}

// Failed tells when the server can no longer accept connections.
func (s *Server) Failed() <-chan error { return s.failed }

// shutdownGrace is what requests under way get to finish.
const shutdownGrace = 5 * time.Second

// Close stops serving and lets go of everything. Sandboxes run on: the next
// server on this data folder adopts them.
func (s *Server) Close(ctx context.Context) error {
	var errs []error
	if s.http != nil {
		grace, cancel := context.WithTimeout(ctx, shutdownGrace)
		if err := s.http.Shutdown(grace); err != nil {
			errs = append(errs, s.http.Close())
		}
		cancel()
	}
	for _, c := range []io.Closer{s.tcp, s.socket} {
		// A listener that was served is closed already; closing it again says so.
		if c != nil {
			_ = c.Close()
		}
	}
	if s.socket != nil {
		errs = append(errs, os.Remove(s.SocketPath()))
	}
	if s.audit != nil {
		errs = append(errs, s.audit.Close())
	}
	if s.svc != nil {
		errs = append(errs, s.svc.Close())
	}
	if s.node != nil {
		errs = append(errs, s.node.Close(ctx))
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	errs = append(errs, s.lock.Unlock())
	return errors.Join(errs...)
}
