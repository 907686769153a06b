package node

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A guest gets the time with its identity and keeps it by its own clock, which
// runs as fast as the host's. When the host's is set (a time server found it
// wrong, or the host slept), running guests are told.
const (
	clockTimeout = 10 * time.Second // for one guest
	clocksAtOnce = 32
)

// clockWatch tells of steps of the host's clock.
type clockWatch struct {
	timer  *os.File
	cancel context.CancelFunc
	done   chan struct{}
}

// watch calls stepped after every step until close.
func (w *clockWatch) watch(stepped func(context.Context)) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return err
	}
	w.timer = os.NewFile(uintptr(fd), "clock")
	if err := armForSteps(fd); err != nil {
		w.timer.Close()
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel, w.done = cancel, make(chan struct{})
	go func() {
		defer close(w.done)
		var b [8]byte
		for {
			_, err := w.timer.Read(b[:])
			if !errors.Is(err, unix.ECANCELED) || armForSteps(fd) != nil {
				return // closed
			}
			stepped(ctx)
		}
	}()
	return nil
}

// armForSteps sets a timer that never comes due and is cancelled by a step.
func armForSteps(fd int) error {
	const never = 1 << 40 // seconds
	return unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET,
		&unix.ItimerSpec{Value: unix.Timespec{Sec: never}}, nil)
}

func (w *clockWatch) close() {
	if w.cancel == nil {
		return
	}
	w.cancel()
	w.timer.Close()
	<-w.done
	w.cancel = nil
}

// setClocks sets the clocks of all guests with which there is a session; the
// others get the time when they are adopted or resumed. One that does not
// answer holds up no other.
func (n *Node) setClocks(ctx context.Context) {
	n.mu.Lock()
	var machines []*machine
	for _, mc := range n.live {
		machines = append(machines, mc)
	}
	n.mu.Unlock()
	n.log.Info("the host's clock was set; telling the guests", "machines", len(machines))
	var wg sync.WaitGroup
	turn := make(chan struct{}, clocksAtOnce)
	for _, mc := range machines {
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			if err := mc.setClock(ctx); err != nil {
				n.log.Warn("cannot set the clock of a guest", "machine", mc.id, "err", err)
			}
		})
	}
	wg.Wait()
}

func (m *machine) setClock(ctx context.Context) error {
	m.mu.Lock()
	c := m.client
	m.mu.Unlock()
	if c == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	return c.SetClock(ctx, time.Now())
}
