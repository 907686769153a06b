package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/image"
	"github.com/eqvps/eqvps/node"
	"github.com/eqvps/eqvps/wire"
)

const defaultListen = "127.0.0.1:8080"

// defaultStandby is enough for people and agents that start a sandbox now and
// then; a host that starts many at once restores them anyway.
const defaultStandby = 2

type serveCmd struct {
	Listen           string        `env:"EQVPS_LISTEN" default:"${listen}" placeholder:"ADDR" help:"TCP address to serve REST on (default ${listen}); the local socket is always served."`
	TLSCert          string        `name:"tls-cert" placeholder:"FILE" help:"Serve TLS on the TCP address with this certificate (PEM); read again when it changes."`
	TLSKey           string        `name:"tls-key" placeholder:"FILE" help:"Key of the certificate (PEM)."`
	Standby          int           `default:"${standby}" placeholder:"N" help:"Machines of the default tariff that are kept ready, so that a sandbox starts at once (default ${standby}); each takes about 50 MiB."`
	Host             []string      `placeholder:"NAME" help:"Name by which a proxy on this machine passes requests on; on a loopback address, others than localhost are refused. Repeatable."`
	Burst            time.Duration `name:"cpu-burst" default:"${burst}" placeholder:"DURATION" help:"Processor time that a sandbox may use above its share before it is held to it (default ${burst}); it comes back at the rate of the share. 0: none."`
	CPUOvercommit    float64       `name:"overcommit-cpu" default:"${overcpu}" placeholder:"FACTOR" help:"How many times over the processors may be promised to sandboxes (default ${overcpu})."`
	MemoryOvercommit float64       `name:"overcommit-memory" default:"${overmemory}" placeholder:"FACTOR" help:"The same for memory (default ${overmemory})."`
	DiskOvercommit   float64       `name:"overcommit-disk" default:"${overdisk}" placeholder:"FACTOR" help:"The same for disk (default ${overdisk})."`
	CPUAbuse         time.Duration `name:"cpu-abuse-window" default:"${cpuabuse}" placeholder:"DURATION" help:"End sandboxes that keep their share of processor full for longer than this without a break, such as 15m (default ${cpuabuse}); 0 never does. Persistent ones are paused."`
	LogLevel         string        `enum:"debug,info,warn,error" default:"info" help:"Least level that is logged to standard error: debug, info (default), warn or error."`
	LogJSON          bool          `name:"log-json" help:"Log JSON instead of text."`
}

// closeTimeout bounds an orderly stop.
const closeTimeout = 15 * time.Second

func (c *serveCmd) Run(ctx context.Context, a *app) error {
	if c.Listen == "" {
		return usageErrorf("--listen needs an address such as %s", defaultListen)
	}
	if _, err := image.Open(a.images).Get(image.DefaultRecipe().Name); err != nil {
		return imageError(err)
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return usageErrorf("--tls-cert and --tls-key go together")
	}
	if min(c.CPUOvercommit, c.MemoryOvercommit, c.DiskOvercommit) <= 0 {
		return usageErrorf("an overcommit factor must be above 0")
	}
	if c.Burst < 0 {
		return usageErrorf("--cpu-burst must not be negative")
	}
	if c.Burst == 0 {
		c.Burst = -1
	}
	if c.CPUAbuse < 0 {
		return usageErrorf("--cpu-abuse-window must not be negative")
	}
	if c.CPUAbuse == 0 {
		c.CPUAbuse = -1
	}
	log := newLogger(a.stderr, c.LogLevel, c.LogJSON)
	s, err := StartServer(ctx, ServerConfig{
		Listen: c.Listen, TLSCert: c.TLSCert, TLSKey: c.TLSKey, Data: a.data, Images: a.images, Hosts: c.Host, Standby: c.Standby, CPUAbuseWindow: c.CPUAbuse, Burst: c.Burst,
		Overcommit: node.Overcommit{CPU: c.CPUOvercommit, Memory: c.MemoryOvercommit, Disk: c.DiskOvercommit}, Logger: log,
		Progress: func(what string) { log.Info(what) },
	})
	if errors.Is(err, errLocked) {
		return fmt.Errorf("another server uses the data folder %s; stop it, or choose another with --data", a.data)
	}
	if err != nil {
		return orSignal(ctx, err)
	}
	c.announce(a, s)
	go s.prewarm(ctx, log)
	select {
	case <-ctx.Done():
		a.note("stopping; sandboxes live on, and the next server on %s takes them over", a.data)
	case err = <-s.Failed():
		err = fmt.Errorf("the server can accept no more connections: %w", err)
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return errors.Join(err, s.Close(closing))
}

// imageError tells what to do about an image that cannot be used.
func imageError(err error) error {
	switch {
	case errors.Is(err, image.ErrNotFound):
		return errors.New("there is no image to start sandboxes from; make it with `eqvps image build`")
	case errors.Is(err, image.ErrDamaged):
		return fmt.Errorf("the image is not usable (%w); make it again with `eqvps image rm %s` and `eqvps image build`", err, image.DefaultRecipe().Name)
	}
	return err
}

// announce says what is served and how machines are run. What the set-up does
// not promise is in the log already.
func (c *serveCmd) announce(a *app, s *Server) {
	info := s.node.Info()
	scheme := "http"
	if c.TLSCert != "" {
		scheme = "https"
	}
	a.note("version %s listens on %s://%s%s and %s", eqvps.Version, scheme, s.Addr(), wire.Prefix, s.SocketPath())
	a.note("machines run on %s %s with %s. %s", info.Monitor, info.Version, info.Accel, info.Reason)
	a.note("the administrator's token is in %s/%s", a.data, adminTokenName)
	if host, _, err := net.SplitHostPort(s.Addr()); err == nil && !net.ParseIP(host).IsLoopback() && c.TLSCert == "" {
		a.note("warning: others can reach this address, and it speaks no TLS; use --tls-cert, or put a proxy that does before it")
	}
}

// prewarm makes the default tariff's template, so that the first sandbox need
// not wait for it.
func (s *Server) prewarm(ctx context.Context, log *slog.Logger) {
	if err := s.Prepare(ctx, eqvps.DefaultTariff); err != nil && ctx.Err() == nil {
		log.Error("the template of the default tariff cannot be made; sandboxes will not start", "tariff", eqvps.DefaultTariff, "err", err)
	}
}

// Prepare makes sure that sandboxes of a tariff on the default image start
// without waiting for their template.
func (s *Server) Prepare(ctx context.Context, tariff string) error {
	t, err := eqvps.DefaultTariffs.Find(tariff)
	if err != nil {
		return err
	}
	return s.node.Warm(ctx, "", t)
}

func newLogger(w io.Writer, level string, asJSON bool) *slog.Logger {
	var l slog.Level
	_ = l.UnmarshalText([]byte(level)) // one of the names the grammar allows
	o := &slog.HandlerOptions{Level: l}
	if asJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
