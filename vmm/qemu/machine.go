package qemu

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/eqvps/eqvps/vmm"
	"golang.org/x/sys/unix"
)

// machine is one running monitor. It keeps no control connection: each use
// opens one, so that nothing a monitor sends unasked piles up anywhere.
type machine struct {
	handle vmm.Handle
	proc   *process
	turn   chan struct{} // held during a conversation: the control socket takes one client

	mu      sync.Mutex
	channel net.Conn // the last connection to the guest
	console []byte   // what the guest printed; reading it from QEMU removes it there
}

func newMachine(h vmm.Handle, p *process) *machine {
	return &machine{handle: h, proc: p, turn: make(chan struct{}, 1)}
}

func (m *machine) Handle() vmm.Handle { return m.handle }

func (m *machine) Done() <-chan struct{} { return m.proc.done }

func (m *machine) CPUTime() (time.Duration, error) { return m.proc.cpuTime() }

// DialGuest opens the channel and closes this object's previous connection,
// behind which the new one would wait for ever.
func (m *machine) DialGuest(ctx context.Context) (net.Conn, error) {
	m.drop()
	conn, err := dial(ctx, m.handle.Dir, guestSocket)
	if err != nil {
		return nil, m.gone(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.channel = conn
	return conn, nil
}

func (m *machine) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.channel != nil {
		m.channel.Close()
		m.channel = nil
	}
}

// control holds one conversation at a time with the monitor.
func (m *machine) control(ctx context.Context, talk func(*conversation) error) error {
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-m.proc.done:
		return vmm.ErrGone
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	c, err := converse(ctx, m.handle.Dir)
	if err != nil {
		return m.gone(err)
	}
	defer c.close()
	if _, err := c.do(capabilities()); err != nil {
		return m.gone(err)
	}
	return m.gone(talk(c))
}

// gone replaces an error by ErrGone when the monitor's end explains it.
func (m *machine) gone(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, errHungUp) || errors.Is(err, unix.ECONNREFUSED) {
		select {
		case <-m.proc.done:
		case <-time.After(time.Second):
		}
	}
	if m.proc.ended() {
		return vmm.ErrGone
	}
	return err
}

// Snapshot stops the guest and writes its device state to w.
func (m *machine) Snapshot(ctx context.Context, w *os.File) error {
	err := m.control(ctx, func(c *conversation) error {
		if err := m.checkShared(c); err != nil {
			return err
		}
		const name = "state"
		_, err := c.do(
			&command{Execute: "stop"},
			migrationCapabilities(),
			&command{Execute: "getfd", Arguments: map[string]any{"fdname": name}, file: w},
			&command{Execute: "migrate", Arguments: map[string]any{"uri": "fd:" + name}},
		)
		if err != nil {
			return err
		}
		return awaitMigration(c)
	})
	if err != nil {
		return fmt.Errorf("snapshot machine %s: %w", m.handle.ID, err)
	}
	return nil
}

// checkShared refuses a machine whose memory is in no file: its snapshot would
// have to carry all of it.
func (m *machine) checkShared(c *conversation) error {
	r, err := findRAM(c)
	if err != nil {
		return err
	}
	found, err := findMapping(m.handle.PID, r.main)
	switch {
	case err != nil:
		return err
	case !found.shared:
		return errors.New("the machine was restored and its memory is private: only a booted machine can be snapshot")
	case found.inMemory():
		return errors.New("the machine's memory lies in no file: boot it with a memory file to snapshot it")
	}
	return nil
}

// awaitMigration waits for the event that ends an outgoing migration.
func awaitMigration(c *conversation) error {
	for {
		msg, err := c.read()
		if err != nil {
			return err
		}
		if msg.Event != "MIGRATION" {
			continue
		}
		var data struct {
			Status string `json:"status"`
		}
		if err := json.Unmarshal(msg.Data, &data); err != nil {
			return fmt.Errorf("event MIGRATION: %w", err)
		}
		switch data.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("the device state could not be written: %s", migrationError(c))
		}
	}
}

func migrationError(c *conversation) string {
	reply, err := c.do(&command{Execute: "query-migrate"})
	if err != nil {
		return err.Error()
	}
	var info struct {
		Desc string `json:"error-desc"`
	}
	if err := json.Unmarshal(reply, &info); err != nil || info.Desc == "" {
		return "the monitor gave no reason"
	}
	return info.Desc
}

// Console returns the last bytes that the guest printed. What it printed
// before an Adopt and was read before it is lost.
func (m *machine) Console(ctx context.Context) (string, error) {
	var printed []byte
	err := m.control(ctx, func(c *conversation) error {
		reply, err := c.do(&command{Execute: "ringbuf-read", Arguments: map[string]any{
			"device": "console", "size": consoleSize, "format": "base64",
		}})
		if err != nil {
			return err
		}
		var text string
		if err := json.Unmarshal(reply, &text); err != nil {
			return fmt.Errorf("ringbuf-read: %w", err)
		}
		printed, err = base64.StdEncoding.DecodeString(text)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read the console of machine %s: %w", m.handle.ID, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.console = append(m.console, printed...)
	if over := len(m.console) - consoleSize; over > 0 {
		m.console = append([]byte(nil), m.console[over:]...)
	}
	return strings.ToValidUTF8(string(m.console), "\uFFFD"), nil
}

// Kill ends the monitor and removes its sockets.
func (m *machine) Kill(ctx context.Context) error {
	m.drop()
	if err := m.proc.kill(ctx); err != nil {
		return fmt.Errorf("machine %s: %w", m.handle.ID, err)
	}
	removeSockets(m.handle.Dir)
	return nil
}

// Close drops the connection to the guest. Done still tells of the machine's end.
func (m *machine) Close() error {
	m.drop()
	return nil
}
