package guest

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
	"time"

	"github.com/hashicorp/yamux"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/channel"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

// replyTimeout is how long a guest may take to answer a small question. A
// guest on a small share of a processor is slow, not dead.
const replyTimeout = 20 * time.Second

// Client is the host's end of a session with a guest agent. It is safe for
// concurrent use. Every failure of the channel is CodeUnreachable.
type Client struct {
	mux     *yamux.Session
	http    *http.Transport
	version int

	replyTimeout, execGrace time.Duration // the constants; shorter in tests
}

var (
	_ eqvps.Commander = (*Client)(nil)
	_ eqvps.Filer     = (*Client)(nil)
)

// DialFunc opens the byte channel to a guest.
type DialFunc func(context.Context) (net.Conn, error)

// ErrAtGate is returned by Connect when the guest waits for an identity.
var ErrAtGate = errors.New("the guest waits for its identity")

// Connect begins a session with a guest that has its identity, or is the
// template of others. It waits until the guest answers or ctx ends.
func Connect(ctx context.Context, dial DialFunc) (*Client, error) {
	hs, err := knock(ctx, dial)
	if err != nil {
		return nil, err
	}
	if hs.AtGate {
		hs.Close()
		return nil, ErrAtGate
	}
	return begin(ctx, hs, nil)
}

// Renew begins the first session of a machine, restored or freshly booted, and
// makes it a machine of its own: see Identity.
func Renew(ctx context.Context, dial DialFunc, id Identity) (*Client, error) {
	if err := id.validate(); err != nil {
		return nil, err
	}
	hs, err := knock(ctx, dial)
	if err != nil {
		return nil, err
	}
	return begin(ctx, hs, id.hello(time.Now())) // the time as late as can be
}

func knock(ctx context.Context, dial DialFunc) (*channel.Handshake, error) {
	nc, err := dial(ctx)
	if err != nil {
		return nil, unreachable(err)
	}
	hs, err := channel.Knock(ctx, nc, Version)
	if err != nil {
		return nil, unreachable(err)
	}
	if hs.Version < oldest || hs.Version > Version {
		hs.Close()
		return nil, unreachable(fmt.Errorf("the guest speaks protocol version %d, this host %d to %d", hs.Version, oldest, Version))
	}
	return hs, nil
}

func begin(ctx context.Context, hs *channel.Handshake, hello []byte) (*Client, error) {
	conn, err := hs.Go(ctx, hello)
	if err != nil {
		if len(hello) > 0 && !errors.As(err, new(*channel.GuestError)) {
			err = errors.Join(err, ErrIdentitySent)
		}
		return nil, unreachable(err)
	}
	mux, err := channel.MuxHost(conn)
	if err != nil {
		_ = conn.Close()
		return nil, unreachable(errors.Join(err, ErrIdentitySent))
	}
	return &Client{
		mux: mux, version: hs.Version, replyTimeout: replyTimeout, execGrace: execGrace,
		http: &http.Transport{
			DialContext:            func(context.Context, string, string) (net.Conn, error) { return mux.Open() },
			DisableCompression:     true,
			MaxIdleConnsPerHost:    2,
			IdleConnTimeout:        time.Minute,
			MaxResponseHeaderBytes: 32 << 10,
			WriteBufferSize:        32 << 10,
			ReadBufferSize:         32 << 10,
		},
	}, nil
}

// Version is the guest's protocol version.
func (c *Client) Version() int { return c.version }

// Done is closed when the session is over, for whatever reason.
func (c *Client) Done() <-chan struct{} { return c.mux.CloseChan() }

// Close ends the session; commands that run in it are killed.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return c.mux.Close()
}

// Pong is a guest's sign of life.
type Pong struct {
	Version int           // of the protocol
	Uptime  time.Duration // since its kernel started
	Clock   time.Time     // what it takes the time to be
}

// Ping asks for a sign of life.
func (c *Client) Ping(ctx context.Context) (Pong, error) {
	b, err := c.call(ctx, wire.MaxReply, http.MethodGet, wire.PathPing, nil, nil)
	if err != nil {
		return Pong{}, err
	}
	var p wire.Pong
	if err := p.Decode(b); err != nil {
		return Pong{}, unreachable(fmt.Errorf("the guest's answer to a ping: %w", err))
	}
	return Pong{Version: p.Version, Uptime: time.Duration(p.UptimeNS), Clock: time.Unix(0, p.UnixNano)}, nil
}

// envSince is the first version of the protocol in which variables can be
// changed.
const envSince = 5

// SetEnv changes the sandbox's variables for the commands to come. c must be
// valid. Codes: CodeTooLarge and CodeInvalidValue (what comes of it is not
// allowed, or the guest is from before this call), CodeUnreachable.
func (c *Client) SetEnv(ctx context.Context, ch eqvps.EnvChange) error {
	if c.version < envSince {
		return eqvps.Errorf(eqvps.CodeInvalidValue, "This sandbox was started by an older version, and its variables stay as they are; create a new one.")
	}
	body := wire.EnvChange{Set: wire.EnvList(ch.Set)}
	for _, name := range ch.Remove {
		body.Remove = append(body.Remove, []byte(name))
	}
	_, err := c.call(ctx, wire.MaxReply, http.MethodPatch, wire.PathEnv, nil, body.Encode())
	return err
}

// SetClock sets the guest's clock.
func (c *Client) SetClock(ctx context.Context, t time.Time) error {
	return c.ask(ctx, http.MethodPost, wire.PathClock, nil, wire.Clock{UnixNano: t.UnixNano()}, nil)
}

// Sync has the guest write what it holds to its disk.
func (c *Client) Sync(ctx context.Context) error {
	return c.ask(ctx, http.MethodPost, wire.PathSync, nil, nil, nil)
}

// Shutdown has the guest write what it holds to its disk and power off. The
// session ends with it.
func (c *Client) Shutdown(ctx context.Context) error {
	return c.ask(ctx, http.MethodPost, wire.PathShutdown, nil, nil, nil)
}

// unreachable gives a failure of the channel its code.
func unreachable(err error) error {
	var e *eqvps.Error
	if errors.As(err, &e) {
		return err
	}
	return eqvps.WrapError(eqvps.CodeUnreachable, err)
}

// send makes a request and returns an answer whose status is 200.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, size int64, body io.Reader) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "guest", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, eqvps.WrapError(eqvps.CodeInternal, err)
	}
	req.ContentLength = size
	req.Header.Set("User-Agent", "")
	res, err := c.http.RoundTrip(req)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, unreachable(err)
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		b, err := io.ReadAll(io.LimitReader(res.Body, wire.MaxReply))
		if err != nil {
			return nil, unreachable(err)
		}
		return nil, wire.ParseFailure(b)
	}
	return res, nil
}

// ask makes a request with small JSON bodies.
func (c *Client) ask(ctx context.Context, method, path string, query url.Values, in, out any) error {
	return c.askUpTo(ctx, wire.MaxReply, method, path, query, in, out)
}

func (c *Client) askUpTo(ctx context.Context, limit int64, method, path string, query url.Values, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return eqvps.WrapError(eqvps.CodeInternal, err)
		}
	}
	b, err := c.call(ctx, limit, method, path, query, body)
	if err != nil || out == nil {
		return err
	}
	if err := json.Unmarshal(b, out); err != nil {
		return unreachable(fmt.Errorf("the guest's answer to %s: %w", path, err))
	}
	return nil
}

// call makes a request and returns the whole answer.
func (c *Client) call(ctx context.Context, limit int64, method, path string, query url.Values, body []byte) ([]byte, error) {
	return c.callWithin(ctx, c.replyTimeout, limit, method, path, query, body)
}

func (c *Client) callWithin(ctx context.Context, timeout time.Duration, limit int64, method, path string, query url.Values, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	res, err := c.send(ctx, method, path, query, int64(len(body)), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err != nil {
		return nil, unreachable(err)
	}
	if int64(len(b)) > limit {
		return nil, unreachable(fmt.Errorf("the guest's answer to %s has more than %d bytes", path, limit))
	}
	return b, nil
}
