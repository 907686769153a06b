// Package httpapi is the REST skin of the service: JSON over HTTP, with an
// OpenAPI 3.1 document made from the same code that answers.
//
// Every answer that is not a success has one shape (wire.Error) and carries a
// request id; the log holds the hidden cause under that id. Bodies and query
// values are never logged.
//
// Time is bounded where it can be abused and nowhere else: a request's header
// and a JSON body must arrive soon, an upload or a download may take as long as
// it moves, a command may take as long as its own timeout.
package httpapi

import (
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// Config is what the skin needs. Sandboxes, Tokens and Secrets must be set.
type Config struct {
	Sandboxes eqvps.SandboxService
	Tokens    eqvps.TokenService
	Secrets   eqvps.SecretService
	Tariffs   eqvps.Tariffs    // on offer; nil: eqvps.DefaultTariffs
	Logger    *slog.Logger     // nil: slog.Default()
	Audit     *slog.Logger     // who did what; nil: nowhere
	Now       func() time.Time // nil: time.Now
	// Hosts are the names, without a port, under which the server may be
	// called. Set it on a loopback address: a web page that points a name of
	// its own there is then turned away. Empty: any.
	Hosts []string
	// LinkKey signs links: 32 random bytes. Links live as long as it does; nil:
	// one that goes with the handler.
	LinkKey []byte
	// BaseURL is where links lead that are asked for through a local socket,
	// e.g. http://127.0.0.1:8080; "": the name in the request.
	BaseURL string
}

// Limits of the transport.
const (
	// HeaderTimeout is how long a request's header may take.
	HeaderTimeout = 10 * time.Second
	// IdleTimeout ends a connection nobody uses.
	IdleTimeout = 120 * time.Second
	// MaxHeaderBytes bounds a request's header.
	MaxHeaderBytes = 32 << 10
	// StallTimeout is how long a client that sends a body may send nothing.
	StallTimeout = 30 * time.Second
	// BodyTimeout is how long a JSON body may take in all. Raw uploads have no
	// such bound: as long as they move they may go on.
	BodyTimeout = 2 * time.Minute
	// WriteStall is how long a client may take nothing of an answer.
	WriteStall = 60 * time.Second
)

// Bounds of JSON bodies. Base64 takes four bytes for three, and an escape in
// text six for one.
const (
	maxJSON      = 64 << 10
	maxCreate    = 6*eqvps.MaxEnvBytes + maxJSON
	maxExec      = eqvps.MaxCommandBytes + eqvps.MaxStdinBytes/3*4 + 6*eqvps.MaxEnvBytes + 1<<20
	maxPutFile   = eqvps.MaxInlineFileBytes/3*4 + maxJSON
	maxPutSecret = 6*eqvps.MaxEnvValueBytes + 1<<10
	maxDraining  = 64 << 20
)

// server is the state shared by all requests.
type server struct {
	Config
	api     huma.API
	mux     *http.ServeMux
	openapi []byte

	failures failures
}

// New returns the handler of the whole interface: everything below
// wire.Prefix, /healthz and /openapi.json.
func New(cfg Config) http.Handler {
	if cfg.Tariffs == nil {
		cfg.Tariffs = eqvps.DefaultTariffs
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.LinkKey == nil {
		cfg.LinkKey = make([]byte, 32)
		rand.Read(cfg.LinkKey) // never fails (crypto/rand, Go 1.24)
	}
	s := &server{Config: cfg, mux: http.NewServeMux()}
	s.api = humago.NewWithPrefix(s.mux, wire.Prefix, apiConfig())
	s.api.UseMiddleware(s.authenticate)
	s.sandboxRoutes()
	s.lifetimeRoutes()
	s.execRoutes()
	s.taskRoutes()
	s.fileRoutes()
	s.tokenRoutes()
	s.secretRoutes()
	s.infoRoutes()
	s.mux.HandleFunc("/", s.unknown)
	s.openapi = s.document()
	return s
}

// NewServer returns a server for a handler of New, with the time limits that
// it counts on.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: HeaderTimeout,
		IdleTimeout:       IdleTimeout,
		MaxHeaderBytes:    MaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// unknown answers for every address and method that has no route.
func (s *server) unknown(w http.ResponseWriter, r *http.Request) {
	c := callOf(r.Context())
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		probe := &http.Request{Method: m, URL: r.URL, Host: r.Host}
		if _, pattern := s.mux.Handler(probe); pattern != "/" {
			w.Header().Add("Allow", m)
		}
	}
	if w.Header().Get("Allow") != "" {
		c.writeError(eqvps.Errorf(eqvps.CodeMethodNotAllowed, "%s", eqvps.CodeMethodNotAllowed.Kind().Message))
		return
	}
	c.writeError(eqvps.Errorf(eqvps.CodeNotFound, "%s", eqvps.CodeNotFound.Kind().Message))
}

func (s *server) serveDocument(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Write(s.openapi)
}

// document renders the OpenAPI document once: it does not change while the
// server runs.
func (s *server) document() []byte {
	schemas := s.api.OpenAPI().Components.Schemas.Map()
	// huma derives a schema from the error type as it is inside this package;
	// on the wire it is wire.Error.
	delete(schemas, "ApiError")
	var all []any
	for _, k := range eqvps.ErrorTable {
		all = append(all, string(k.Code))
	}
	schemas["Error"].Properties["error"].Enum = all
	doc, err := json.Marshal(s.api.OpenAPI())
	if err != nil {
		panic(err) // only a mistake in this package can cause it
	}
	return doc
}
