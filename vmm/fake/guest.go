package fake

import (
	"net"
	"sync"
	"time"

	"github.com/eqvps/eqvps/vmm"
)

const consoleSize = 64 << 10

// Guest is the inside of one machine, for its program and for tests.
type Guest struct {
	monitor *Monitor
	spec    vmm.Spec
	handle  vmm.Handle
	booted  bool
	turn    chan struct{} // held by the connection that is served
	done    chan struct{}

	mu      sync.Mutex
	serve   func(net.Conn) // nil until the machine runs
	memory  []byte
	console []byte
	used    time.Duration
	stopped bool          // for good, by a snapshot
	pause   chan struct{} // not nil while the guest is suspended; closed when it runs on
	ended   bool
	conns   map[net.Conn]bool
}

// Spec is what the machine was made of.
func (g *Guest) Spec() vmm.Spec { return g.spec }

// Handle is the machine's handle.
func (g *Guest) Handle() vmm.Handle { return g.handle }

// Memory returns what the program stored last, before or after a snapshot.
func (g *Guest) Memory() []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]byte(nil), g.memory...)
}

// SetMemory stores what a snapshot keeps.
func (g *Guest) SetMemory(b []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.memory = append([]byte(nil), b...)
}

// Print writes on the machine's console.
func (g *Guest) Print(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.console = append(g.console, text...)
	if over := len(g.console) - consoleSize; over > 0 {
		g.console = append([]byte(nil), g.console[over:]...)
	}
}

// Use adds to the processor time that the machine has used.
func (g *Guest) Use(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.used += d
}

// Panic ends the machine from within.
func (g *Guest) Panic() { g.end() }

// end ends the machine and closes its connections. Only the first call counts.
func (g *Guest) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return
	}
	g.ended = true
	g.hangUp()
	g.monitor.remove(g.handle.PID)
	close(g.done)
}

// stop freezes the guest: it hears and says nothing more.
func (g *Guest) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	g.hangUp()
}

func (g *Guest) hangUp() {
	for conn := range g.conns {
		conn.Close()
	}
	g.conns = nil
}

// connect makes a connection, which is served when its turn comes.
func (g *Guest) connect() (net.Conn, error) {
	outside, inside := net.Pipe()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return nil, vmm.ErrGone
	}
	if g.conns == nil {
		g.conns = make(map[net.Conn]bool)
	}
	g.conns[inside] = true
	go g.session(inside)
	return outside, nil
}

func (g *Guest) session(inside net.Conn) {
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.conns, inside)
		inside.Close()
	}()
	select {
	case g.turn <- struct{}{}:
		defer func() { <-g.turn }()
	case <-g.done:
		return
	}
	g.mu.Lock()
	serve := g.serve
	deaf := serve == nil || g.stopped || g.ended
	g.mu.Unlock()
	if deaf {
		<-g.done
		return
	}
	serve(gate{inside, g})
}

// suspend lets the guest neither hear nor say anything until Continue.
func (g *Guest) suspend() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pause == nil {
		g.pause = make(chan struct{})
	}
}

func (g *Guest) runOn() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pause != nil {
		close(g.pause)
		g.pause = nil
	}
}

// awaitRunning returns when the guest is not suspended.
func (g *Guest) awaitRunning() {
	g.mu.Lock()
	pause := g.pause
	g.mu.Unlock()
	if pause != nil {
		select {
		case <-pause:
		case <-g.done:
		}
	}
}

// gate is a connection as its program sees it: nothing passes while the guest
// is suspended.
type gate struct {
	net.Conn
	guest *Guest
}

func (c gate) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.guest.awaitRunning()
	return n, err
}

func (c gate) Write(b []byte) (int, error) {
	c.guest.awaitRunning()
	return c.Conn.Write(b)
}
