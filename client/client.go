// Package client speaks the REST interface of an EQVPS server.
//
//	c, err := client.New("http://127.0.0.1:8080", token)
//	sb, err := c.Create(ctx, wire.CreateSandbox{Tariff: "small"})
//	defer c.Delete(ctx, sb.ID)
//	res, err := c.Exec(ctx, sb.ID, wire.ExecRequest{Command: "uname -a"})
//
// A command that fails is a result, not an error. What the server refuses
// comes back as an *Error.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// Error is what the server answers when it does not do what was asked.
type Error struct {
	Status     int        // HTTP status
	Code       eqvps.Code // stable name
	Message    string     // one sentence: what is wrong
	Fix        string     // what to do
	Next       string     // the call that helps, as METHOD /path; may be empty
	RequestID  string     // the server's log holds the cause under it
	RetryAfter time.Duration
}

// Error returns the sentence for people, with what to do.
func (e *Error) Error() string {
	if e.Fix == "" {
		return e.Message
	}
	return e.Message + " " + e.Fix
}

// Unwrap makes eqvps.ErrorCode work on the error.
func (e *Error) Unwrap() error {
	return &eqvps.Error{Code: e.Code, Message: e.Message, RetryAfter: e.RetryAfter}
}

func newError(status int, e wire.Error) *Error {
	return &Error{
		Status: status, Code: eqvps.Code(e.Code), Message: e.Message, Fix: e.Fix, Next: e.Next, RequestID: e.RequestID,
		RetryAfter: time.Duration(e.RetryAfter) * time.Second,
	}
}

// Client calls one server. It is safe for concurrent use.
type Client struct {
	base  string // scheme, host and prefix, without a slash at the end
	shown string // the server's address for people
	token string
	http  *http.Client
}

// Option changes a Client.
type Option func(*Client)

// WithHTTPClient replaces the HTTP client, e.g. to trust a private authority.
// It has no effect on a unix socket.
func WithHTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

const unixScheme = "unix://"

// New makes a client for a server such as "http://127.0.0.1:8080" or
// "unix:///run/eqvps.sock". The token may be empty for public calls.
func New(baseURL, token string, opts ...Option) (*Client, error) {
	c := &Client{shown: baseURL, token: token, http: &http.Client{Transport: transport(nil)}}
	for _, o := range opts {
		o(c)
	}
	if socket, ok := strings.CutPrefix(baseURL, unixScheme); ok {
		if !strings.HasPrefix(socket, "/") {
			return nil, fmt.Errorf("the address %q is not usable; a socket is given as unix:///absolute/path", baseURL)
		}
		c.http = &http.Client{Transport: transport(func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		})}
		c.base = "http://localhost" + wire.Prefix
		return c, nil
	}
	u, err := url.Parse(baseURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("the address %q is not usable; use one such as http://127.0.0.1:8080", baseURL)
	}
	c.base = strings.TrimRight(u.Scheme+"://"+u.Host+u.EscapedPath(), "/")
	if !strings.HasSuffix(c.base, wire.Prefix) {
		c.base += wire.Prefix
	}
	return c, nil
}

// transport has no limit on a whole call: a command, an upload and a stream
// take as long as they take.
func transport(dial func(context.Context, string, string) (net.Conn, error)) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	if dial != nil {
		t.DialContext, t.Proxy = dial, nil
	}
	return t
}

// maxAnswer bounds a JSON answer: 2 streams of 1 MiB, as text and as base64,
// where JSON may take six bytes for one, or a file of 5 MB.
const maxAnswer = 64 << 20

// request is one call.
type request struct {
	method, path string
	query        url.Values
	contentType  string
	size         int64 // of the body; -1: unknown, or there is none
	body         io.Reader
	ranges       string // the header Range
}

// do sends a request and returns the answer of a success; the caller closes it.
func (c *Client) do(ctx context.Context, r request) (*http.Response, error) {
	u := c.base + r.path
	if len(r.query) > 0 {
		u += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u, r.body)
	if err != nil {
		return nil, err
	}
	if r.size >= 0 {
		req.ContentLength = r.size
		if r.size == 0 {
			req.Body = http.NoBody
		}
	}
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	if r.ranges != "" {
		req.Header.Set("Range", r.ranges)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	req.Header.Set("User-Agent", "eqvps-go/"+eqvps.Version)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.networkError(ctx, err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, c.readError(resp)
}

func (c *Client) readError(resp *http.Response) error {
	data, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // a part may do
	var e wire.Error
	if json.Unmarshal(data, &e) != nil || e.Code == "" {
		return &Error{
			Status: resp.StatusCode, Code: eqvps.CodeInternal,
			Message: fmt.Sprintf("What answers at %s is not an EQVPS server: HTTP %s.", c.shown, resp.Status),
			Fix:     "Check the address.",
		}
	}
	out := newError(resp.StatusCode, e)
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && out.RetryAfter == 0 {
		out.RetryAfter = time.Duration(s) * time.Second
	}
	return out
}

// networkError says in one sentence what to do about a server that is not
// there.
func (c *Client) networkError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("no server answers at %s; start one with `eqvps serve`, or name another address (%w)", c.shown, cause(err))
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("the server at %s may not be used by this user; run as its owner, or use its http address (%w)", c.shown, cause(err))
	}
	return fmt.Errorf("the server at %s cannot be reached (%w)", c.shown, cause(err))
}

// cause drops the method and the address, which the sentence already has.
func cause(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// call sends in as JSON, unless it is nil, and reads the answer into out.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	resp, err := c.send(ctx, method, path, query, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return c.networkError(ctx, err)
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("what answers at %s is not an EQVPS server; check the address (%w)", c.shown, err)
	}
	return nil
}

func (c *Client) send(ctx context.Context, method, path string, query url.Values, in any) (*http.Response, error) {
	if in == nil {
		return c.do(ctx, request{method: method, path: path, query: query, size: -1})
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(in); err != nil {
		return nil, err
	}
	return c.do(ctx, request{method: method, path: path, query: query, contentType: "application/json", size: int64(buf.Len()), body: &buf})
}
