// Package node runs the machines of one host. It assembles what the packages
// below it offer (images, a monitor, network slots, the guest protocol) into
// machines that start in a fraction of a second, because a start is a restore:
//
//   - template.go: once per image and tariff a machine is booted, warmed and
//     frozen;
//   - standby.go: a few such copies are kept ready before anyone asks;
//   - start.go: every sandbox's machine is a private copy of a frozen one, on
//     its own disk, in its own network slot and cgroup;
//   - machine.go: a running machine as its callers see it;
//   - pause.go, resume.go, reboot.go: a persistent machine put away, brought
//     back as it was, or started anew from its disk; paused.go says what lies
//     on disk meanwhile and sealed.go how it is encrypted;
//   - clock.go: running machines follow when the host's clock steps;
//   - destroy.go: how everything a machine had is freed, also after a crash.
package node

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/image"
	"github.com/eqvps/eqvps/network"
	"github.com/eqvps/eqvps/vmm"
)

// Config is what a Node is made of.
type Config struct {
	Dir     string // the data folder, absolute; the caller holds its lock
	Images  *image.Store
	Monitor vmm.Monitor
	Agent   []byte // the guest agent's program
	RunDir  string // host-wide records of network slots; "" is the network package's default
	// SlotPool is how many network slots are kept ready; 0 is 4.
	SlotPool int
	// Overcommit is how many times over the host may be promised; the zero value
	// is DefaultOvercommit.
	Overcommit Overcommit
	// Burst is the processor time that a machine may use above its share before
	// it is limited to it; 0 is DefaultBurst, less is none.
	Burst  time.Duration
	Logger *slog.Logger
	// Progress is told what a long step (making a template) is doing; may be nil.
	Progress func(string)
	// Step is called before every privileged step with its label; an error
	// fails that step. Tests break one step at a time. May be nil.
	Step func(label string) error
}

// Node implements eqvps.Host on this host.
type Node struct {
	dir      string
	owner    string // short name of the data folder, for cgroups and slots
	images   *image.Store
	monitor  vmm.Monitor
	info     vmm.Info
	agent    []byte
	agentSum string
	net      *network.Manager
	slots    *network.Pool
	log      *slog.Logger
	progress func(string)
	step     func(string) error

	building   singleflight.Group // one build per template key
	destroying singleflight.Group // one end per machine
	bootQueue  chan struct{}      // bounds cold boots at once

	clock    clockWatch
	capacity *capacity
	burst    time.Duration // the allowance of each machine
	quit     chan struct{} // closed by Close
	stopped  sync.WaitGroup

	mu        sync.Mutex
	ready     standby
	templates map[string]*template
	starting  map[string]*start   // machines being started, paused or resumed, by id
	live      map[string]*machine // machines that callers hold, by id
}

var _ eqvps.Host = (*Node)(nil)

// minFreeBytes must be free on the data folder's disk for a machine to start.
const minFreeBytes = 1 << 30

// coldBootsAtOnce bounds cold boots: they are CPU-bound, and more of them side
// by side only make each slower.
const coldBootsAtOnce = 2

// New makes a node and frees what a process that died left half made. Machines
// that still run are left alone: Records tells them, Adopt and Destroy follow.
func New(ctx context.Context, cfg Config) (*Node, error) {
	if len(cfg.Agent) == 0 {
		return nil, errors.New("this build has no guest agent inside; build it with `make build`")
	}
	info, err := cfg.Monitor.Info(ctx)
	if err != nil {
		return nil, err
	}
	ownerSum := sha256.Sum256([]byte(cfg.Dir))
	agentSum := sha256.Sum256(cfg.Agent)
	n := &Node{
		dir: cfg.Dir, owner: hex.EncodeToString(ownerSum[:5]),
		images: cfg.Images, monitor: cfg.Monitor, info: info,
		agent: cfg.Agent, agentSum: hex.EncodeToString(agentSum[:]),
		log: cfg.Logger, progress: cfg.Progress, step: cfg.Step,
		bootQueue: make(chan struct{}, coldBootsAtOnce),
		ready:     standby{wake: make(chan struct{}, 1)},
		templates: map[string]*template{}, starting: map[string]*start{}, live: map[string]*machine{},
		burst: max(0, cmp.Or(cfg.Burst, DefaultBurst)), quit: make(chan struct{}),
	}
	if n.log == nil {
		n.log = slog.Default()
	}
	if n.progress == nil {
		n.progress = func(string) {}
	}
	if n.step == nil {
		n.step = func(string) error { return nil }
	}
	for _, sub := range []string{"machines", "templates"} {
		if err := os.MkdirAll(filepath.Join(n.dir, sub), 0o700); err != nil {
			return nil, fmt.Errorf("the data folder %s cannot be used: %w", n.dir, err)
		}
	}
	if n.capacity, err = newCapacity(cfg.Overcommit, n.dir); err != nil {
		return nil, err
	}
	n.net, err = network.New(network.Config{Owner: n.dir, RunDir: cfg.RunDir, Step: cfg.Step})
	if err != nil {
		return nil, err
	}
	if err := n.reclaim(ctx); err != nil {
		return nil, err
	}
	size := cfg.SlotPool
	if size == 0 {
		size = 4
	}
	n.slots = network.NewPool(n.net, size)
	if err := n.clock.watch(n.setClocks); err != nil {
		return nil, errors.Join(fmt.Errorf("watch the host's clock: %w", err), n.slots.Close(ctx))
	}
	n.stopped.Go(n.keepShares)
	return n, nil
}

// reclaim frees slots that no machine's record names and templates half made.
func (n *Node) reclaim(ctx context.Context) error {
	ids, err := n.Records()
	if err != nil {
		return err
	}
	used := map[int]bool{}
	for _, id := range ids {
		r, err := readRecord(n.machineDir(id))
		if err != nil {
			return err
		}
		if r == nil {
			continue
		}
		n.capacity.note(id, r.Claim)
		if r.Handle == nil {
			n.capacity.note(id, r.Claim.resting())
		}
		if dir := n.machineDir(id); isPaused(dir) && (r.Slot != nil || r.Handle != nil) {
			// Its process died when all of the pause was done but this.
			if err := n.clear(ctx, "resume.rest", r, dir); err != nil {
				n.log.Error("something is left of a machine that is paused", "machine", id, "err", err)
			}
		}
		switch slot, err := n.openSlot(r.Slot); {
		case err == nil:
			used[slot.Index()] = true
		case !errors.Is(err, network.ErrGone):
			return err
		}
	}
	if freed, err := n.net.Reclaim(ctx, func(i int) bool { return used[i] }); err != nil {
		return fmt.Errorf("free network slots of an earlier run: %w", err)
	} else if freed > 0 {
		n.log.Info("freed network slots of an earlier run", "slots", freed)
	}
	return n.sweepTemplates()
}

// Info tells which monitor runs the machines.
func (n *Node) Info() vmm.Info { return n.info }

// Close drops the pool of slots and the templates' memory. Machines run on.
func (n *Node) Close(ctx context.Context) error {
	n.clock.close()
	close(n.quit)
	n.stopped.Wait()
	err := n.ready.close(ctx, n)
	err = errors.Join(err, n.slots.Close(ctx))
	n.removeCgroups()
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, t := range n.templates {
		err = errors.Join(err, t.memory.Close())
		delete(n.templates, key)
	}
	return err
}

// do runs one labelled privileged step.
func (n *Node) do(label string, f func() error) error {
	if err := n.step(label); err != nil {
		return fmt.Errorf("%s: %w", label, err)
	}
	if err := f(); err != nil {
		return fmt.Errorf("%s: %w", label, err)
	}
	return nil
}

// checkDisk refuses a machine while the host's own disk is nearly full.
func (n *Node) checkDisk() error {
	var st unix.Statfs_t
	if err := unix.Statfs(n.dir, &st); err != nil {
		return eqvps.WrapError(eqvps.CodeStartFailed, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < minFreeBytes {
		e := eqvps.WrapError(eqvps.CodeCapacity, fmt.Errorf("only %d MiB are free below %s", free>>20, n.dir))
		e.RetryAfter = 30 * time.Second
		return e
	}
	return nil
}

// startError gives a failure of the host the code its caller shall see.
func startError(err error) error {
	var known *eqvps.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC):
		return eqvps.WrapError(eqvps.CodeCapacity, err)
	case errors.As(err, &known) && known.Code != eqvps.CodeUnreachable:
		return err
	case errors.Is(err, image.ErrNotFound):
		return &eqvps.Error{Code: eqvps.CodeUnknownImage, Cause: err,
			Message: "There is no such image on this server; the operator makes the default one with `eqvps image build`."}
	case errors.Is(err, image.ErrDamaged):
		return &eqvps.Error{Code: eqvps.CodeStartFailed, Cause: err,
			Message: "The image on this server is damaged; the operator makes it again with `eqvps image build`."}
	case errors.Is(err, fs.ErrPermission):
		return &eqvps.Error{Code: eqvps.CodeStartFailed, Cause: err,
			Message: "The server lacks rights on its host; the operator runs it as root."}
	}
	// Also a guest that does not answer: there is no sandbox yet to be deleted.
	return eqvps.WrapError(eqvps.CodeStartFailed, err)
}

// hostName is a machine's name for itself: its id in the letters that host
// names may have.
func hostName(id string) string { return strings.ReplaceAll(id, "_", "-") }
