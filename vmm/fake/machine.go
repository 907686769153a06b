package fake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/eqvps/eqvps/vmm"
)

// machine is one server's hold on a guest.
type machine struct {
	guest *Guest

	mu      sync.Mutex
	channel net.Conn
}

func (m *machine) Handle() vmm.Handle    { return m.guest.handle }
func (m *machine) Done() <-chan struct{} { return m.guest.done }

// begin runs the hook of a step and refuses an ended machine.
func (m *machine) begin(ctx context.Context, step string) error {
	if err := m.guest.monitor.step(ctx, step, m.guest.handle.ID); err != nil {
		return err
	}
	select {
	case <-m.guest.done:
		return vmm.ErrGone
	default:
		return nil
	}
}

func (m *machine) DialGuest(ctx context.Context) (net.Conn, error) {
	m.drop()
	if err := m.begin(ctx, StepDial); err != nil {
		return nil, err
	}
	conn, err := m.guest.connect()
	if err != nil {
		return nil, err
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

// Snapshot writes the guest's memory into its memory file.
func (m *machine) Snapshot(ctx context.Context, w *os.File) error {
	if err := m.begin(ctx, StepSnapshot); err != nil {
		return err
	}
	if !m.guest.booted || m.guest.spec.MemoryFile == "" {
		return fmt.Errorf("snapshot machine %s: only a booted machine with a memory file can be snapshot", m.guest.handle.ID)
	}
	m.guest.stop()
	f, err := os.OpenFile(m.guest.spec.MemoryFile, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("snapshot machine %s: %w", m.guest.handle.ID, err)
	}
	_, err = f.Write(encode(m.guest.Memory()))
	if err = errors.Join(err, f.Close()); err == nil {
		_, err = w.WriteString(snapshotState)
	}
	if err != nil {
		return fmt.Errorf("snapshot machine %s: %w", m.guest.handle.ID, err)
	}
	return nil
}

func (m *machine) Console(ctx context.Context) (string, error) {
	if err := m.begin(ctx, StepConsole); err != nil {
		return "", err
	}
	m.guest.mu.Lock()
	defer m.guest.mu.Unlock()
	return strings.ToValidUTF8(string(m.guest.console), "\uFFFD"), nil
}

func (m *machine) CPUTime() (time.Duration, error) {
	if err := m.begin(context.Background(), StepCPUTime); err != nil {
		return 0, err
	}
	m.guest.mu.Lock()
	defer m.guest.mu.Unlock()
	return m.guest.used, nil
}

// Kill ends the machine. A hook that fails leaves it running.
func (m *machine) Kill(ctx context.Context) error {
	if err := m.guest.monitor.step(ctx, StepKill, m.guest.handle.ID); err != nil {
		return err
	}
	m.drop()
	m.guest.end()
	return nil
}

func (m *machine) Close() error {
	m.drop()
	return nil
}
