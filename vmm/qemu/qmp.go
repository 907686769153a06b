package qemu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxQMPLine bounds one line from the monitor, which a hostile guest may
	// have taken over.
	maxQMPLine = 1 << 20
	// qmpTimeout bounds what a monitor may take for one conversation, whatever
	// deadline the caller set.
	qmpTimeout = time.Minute
)

// command is one request of the QEMU machine protocol.
type command struct {
	Execute   string   `json:"execute"`
	Arguments any      `json:"arguments,omitempty"`
	ID        string   `json:"id"`
	file      *os.File // sent along with the command
}

// message is one line from the monitor: a greeting, a reply or an event.
type message struct {
	Event  string          `json:"event"`
	Data   json.RawMessage `json:"data"`
	Return json.RawMessage `json:"return"`
	Error  *qmpError       `json:"error"`
	ID     string          `json:"id"`
}

// qmpError is the monitor's refusal of a command.
type qmpError struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func (e *qmpError) Error() string { return e.Desc }

// errHungUp tells that the monitor closed the control connection, which it
// does when it ends.
var errHungUp = errors.New("the monitor hung up")

// errNoAnswer tells that a monitor took too long.
var errNoAnswer = errors.New("the monitor does not answer")

// lastID makes the ids of commands differ between all conversations of this
// process: a reply to the last client may still reach the next one.
var lastID atomic.Uint64

// conversation is one connection to a monitor's control socket. Commands are
// answered in order, so several may be written before the first answer is read.
type conversation struct {
	ctx     context.Context
	conn    *net.UnixConn
	lines   *bufio.Scanner
	timeout *time.Timer
	cancel  func()
}

// converse connects and asks for the command mode. The caller must call close.
// The conversation ends with the context.
func converse(ctx context.Context, dir string) (*conversation, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	timeout := time.AfterFunc(qmpTimeout, func() { cancel(errNoAnswer) })
	conn, err := dial(ctx, dir, controlSocket)
	if err != nil {
		timeout.Stop()
		cancel(nil)
		return nil, err
	}
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, maxQMPLine)
	lines.Split(wholeLines)
	c := &conversation{ctx: ctx, conn: conn, lines: lines, timeout: timeout}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	c.cancel = func() {
		stop()
		timeout.Stop()
		cancel(nil)
		conn.Close()
	}
	return c, nil
}

// wholeLines splits like bufio.ScanLines, but drops a last line that was cut
// off by a deadline or the monitor's end.
func wholeLines(data []byte, _ bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	return 0, nil, nil
}

func (c *conversation) close() { c.cancel() }

// untimed calls f in the middle of the conversation. Its time is not the
// monitor's, and only the caller's context bounds it.
func (c *conversation) untimed(f func() error) error {
	c.timeout.Stop()
	defer c.timeout.Reset(qmpTimeout)
	return f()
}

// send writes commands without waiting for an answer and gives each its id.
func (c *conversation) send(commands ...*command) error {
	for _, cmd := range commands {
		cmd.ID = strconv.Itoa(os.Getpid()) + "-" + strconv.FormatUint(lastID.Add(1), 10)
		line, err := json.Marshal(cmd)
		if err != nil {
			return err
		}
		line = append(line, '\n')
		if cmd.file == nil {
			_, err = c.conn.Write(line)
		} else {
			_, _, err = c.conn.WriteMsgUnix(line, unix.UnixRights(int(cmd.file.Fd())), nil)
		}
		if err != nil {
			return c.broken(err)
		}
	}
	return nil
}

// await reads on until the reply to a command, and ignores everything else.
func (c *conversation) await(cmd *command) (json.RawMessage, error) {
	for {
		msg, err := c.read()
		if err != nil {
			return nil, err
		}
		if msg.ID != cmd.ID || msg.Event != "" {
			continue
		}
		if msg.Error != nil {
			return nil, fmt.Errorf("%s: %w", cmd.Execute, msg.Error)
		}
		return msg.Return, nil
	}
}

// do sends commands and waits for the reply to each; it returns the last one.
func (c *conversation) do(commands ...*command) (json.RawMessage, error) {
	if err := c.send(commands...); err != nil {
		return nil, err
	}
	var reply json.RawMessage
	for _, cmd := range commands {
		var err error
		if reply, err = c.await(cmd); err != nil {
			return nil, err
		}
	}
	return reply, nil
}

func (c *conversation) read() (message, error) {
	var msg message
	if !c.lines.Scan() {
		err := c.lines.Err()
		if err == nil {
			err = io.EOF
		}
		return msg, c.broken(err)
	}
	if err := json.Unmarshal(c.lines.Bytes(), &msg); err != nil {
		return msg, fmt.Errorf("the monitor sent a line that is no QMP: %w", err)
	}
	return msg, nil
}

// broken turns a failed read or write into its cause.
func (c *conversation) broken(err error) error {
	switch {
	case c.ctx.Err() != nil:
		return context.Cause(c.ctx)
	case errors.Is(err, io.EOF), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		return errHungUp
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("the monitor sent a line of more than %d bytes", maxQMPLine)
	}
	return fmt.Errorf("talk to the monitor: %w", err)
}

// capabilities begins every conversation.
func capabilities() *command { return &command{Execute: "qmp_capabilities"} }

// migrationCapabilities make a migration leave out memory that is mapped
// shared with a file, and report its end by an event.
func migrationCapabilities() *command {
	type capability struct {
		Name  string `json:"capability"`
		State bool   `json:"state"`
	}
	return &command{Execute: "migrate-set-capabilities", Arguments: map[string]any{
		"capabilities": []capability{{"x-ignore-shared", true}, {"events", true}},
	}}
}
