package httpapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// call is one request on its way.
type call struct {
	s         *server
	id        string
	w         *answer
	r         *http.Request
	body      *body // nil: the request has none
	draining  int64 // bytes of it to be read after the answer; see drain
	principal eqvps.Principal
	operation string
	err       error // what the caller was told, with its hidden cause
}

type callKey struct{}

func callOf(ctx context.Context) *call { return ctx.Value(callKey{}).(*call) }

// ServeHTTP gives each request its id, its log line and its time limits, and
// turns a panic into an answer.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := s.Now()
	c := &call{s: s, id: newRequestID()}
	rc := http.NewResponseController(w)
	c.w = &answer{ResponseWriter: w, rc: rc}
	c.r = r.WithContext(context.WithValue(r.Context(), callKey{}, c))
	if r.Body != nil && r.Body != http.NoBody {
		c.body = newBody(r.Body, rc)
		c.r.Body = c.body
	}
	h := w.Header()
	h.Set(wire.HeaderRequestID, c.id)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")

	defer func() {
		p := recover()
		if p != nil && p != http.ErrAbortHandler {
			c.err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
		if p != nil && c.w.status == 0 {
			c.writeError(c.err)
			p = nil
		}
		s.log(c, s.Now().Sub(start))
		s.audit(c)
		if p != nil {
			panic(http.ErrAbortHandler) // cut the connection: the answer is not whole
		}
	}()

	if err := s.admit(r); err != nil {
		c.writeError(err)
		return
	}
	s.mux.ServeHTTP(c.w, c.r)
	c.drained()
}

// admit turns away what no honest client sends: addresses that mean another
// one, and web pages of other sites.
func (s *server) admit(r *http.Request) *eqvps.Error {
	if p := r.URL.Path; p != path.Clean(p) {
		return eqvps.Errorf(eqvps.CodeNotFound, "%s", eqvps.CodeNotFound.Kind().Message)
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || u.Host != r.Host {
			return eqvps.Errorf(eqvps.CodeForbidden, "Web pages of other sites may not call this server.")
		}
	}
	if len(s.Hosts) > 0 && !slices.Contains(s.Hosts, hostname(r.Host)) {
		return eqvps.Errorf(eqvps.CodeForbidden, "This server is not called by that host name; use one of %s.", strings.Join(s.Hosts, ", "))
	}
	return nil
}

func hostname(hostport string) string {
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		return h
	}
	return strings.Trim(hostport, "[]")
}

func newRequestID() string {
	b := make([]byte, 10)
	rand.Read(b) // never fails (crypto/rand, Go 1.24)
	return "req_" + hex.EncodeToString(b)
}

// log writes the one line of a request. It holds no body and no query: both may
// carry secrets.
func (s *server) log(c *call, took time.Duration) {
	level := slog.LevelInfo
	attrs := []slog.Attr{
		slog.String("request_id", c.id), slog.String("method", c.r.Method), slog.String("path", c.r.URL.Path),
		slog.Int("status", cmp.Or(c.w.status, http.StatusOK)), slog.Int64("bytes", c.w.bytes), slog.Duration("took", took),
		slog.String("remote", c.r.RemoteAddr),
	}
	if c.operation != "" {
		attrs = append(attrs, slog.String("operation", c.operation))
	}
	if c.principal.AccountID != "" {
		attrs = append(attrs, slog.String("account", c.principal.AccountID), slog.String("token", c.principal.TokenID))
	}
	if c.err != nil {
		attrs = append(attrs, slog.String("code", string(eqvps.ErrorCode(c.err))), slog.String("error", c.err.Error()))
		if c.w.status >= 500 && c.w.status != http.StatusInsufficientStorage { // the sandbox's own affair
			level = slog.LevelError
		}
	}
	// The request's context may be over; the line is wanted all the same.
	s.Logger.LogAttrs(context.WithoutCancel(c.r.Context()), level, "request", attrs...)
}

// writeError answers with an error outside of a route.
func (c *call) writeError(err error) {
	e := c.fail(err)
	h := c.w.Header()
	h.Del("Content-Length") // of the answer that would have been
	h.Del("Content-Disposition")
	h.Del("Accept-Ranges")
	for k, v := range e.GetHeaders() {
		h[k] = v
	}
	h.Set("Content-Type", "application/json")
	c.w.WriteHeader(e.status)
	json.NewEncoder(c.w).Encode(e) // a client that is gone needs no answer
}

// answer counts what is sent and cuts off a client that takes nothing.
type answer struct {
	http.ResponseWriter
	rc     *http.ResponseController
	status int
	bytes  int64
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader sends the header once.
func (a *answer) WriteHeader(status int) {
	if a.status != 0 {
		return
	}
	if status >= 200 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// writeChunk is written under one deadline: a client slower than WriteStall for
// it is as good as gone.
const writeChunk = 256 << 10

// Write sends p. Each piece has WriteStall to be taken.
func (a *answer) Write(p []byte) (n int, err error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	for {
		piece := p[n:min(n+writeChunk, len(p))]
		a.rc.SetWriteDeadline(time.Now().Add(WriteStall)) // not every writer in a test has one
		k, err := a.ResponseWriter.Write(piece)
		n += k
		a.bytes += int64(k)
		if err != nil || n == len(p) {
			return n, err
		}
	}
}

// Flush sends what is buffered.
func (a *answer) Flush() error {
	a.rc.SetWriteDeadline(time.Now().Add(WriteStall))
	return a.rc.Flush()
}

// body is a request's body that may be slow, but not stand still.
type body struct {
	io.ReadCloser
	rc    *http.ResponseController
	until time.Time // zero: no bound in all
	begun bool      // something was read
	err   error     // the first failure, except the end
}

func newBody(rd io.ReadCloser, rc *http.ResponseController) *body {
	// Also for a body nobody reads: the server discards it before the next
	// request.
	rc.SetReadDeadline(time.Now().Add(StallTimeout))
	return &body{ReadCloser: rd, rc: rc}
}

var errStalled = eqvps.Errorf(eqvps.CodeInvalidRequest, "The request's body stopped coming; send it again without a break.")

// Read reads under a deadline. At the end the deadline goes: the server watches
// the connection for a client that leaves, and a deadline would look like one.
// After a failure it stays: the server still tries to read what is left.
func (b *body) Read(p []byte) (int, error) {
	deadline := time.Now().Add(StallTimeout)
	if !b.until.IsZero() && b.until.Before(deadline) {
		deadline = b.until
	}
	b.rc.SetReadDeadline(deadline)
	b.begun = true
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.rc.SetReadDeadline(time.Time{})
	}
	var t net.Error
	switch {
	case err == nil || err == io.EOF:
	case errors.As(err, &t) && t.Timeout():
		err = errStalled
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = &eqvps.Error{Code: eqvps.CodeInvalidRequest, Message: "The request's body ended early.", Cause: err}
	default: // such as a malformed chunk: whatever it is, the client sent it
		err = &eqvps.Error{Code: eqvps.CodeInvalidRequest, Message: "The request's body is not well formed.", Cause: err}
	}
	if err != nil && err != io.EOF && b.err == nil {
		b.err = err
	}
	return n, err
}
