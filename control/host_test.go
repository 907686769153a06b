package control_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eqvps/eqvps"
)

// memHost is a host in memory. It outlives the services of a test as a real
// host's machines outlive a server.
type memHost struct {
	mu       sync.Mutex
	machines map[string]*memMachine
	paused   map[string]bool
	starting chan struct{} // if set, Start waits until it is closed or its ctx ends
	entered  chan string   // if set, told when Start begins
	fail     map[string]error

	destroying sync.Map // ids
	started    int
	reboots    int
}

func newMemHost() *memHost {
	return &memHost{machines: map[string]*memMachine{}, paused: map[string]bool{}, fail: map[string]error{}}
}

// failure returns the fault injected into a step, once.
func (h *memHost) failure(step string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.fail[step]
	delete(h.fail, step)
	return err
}

func (h *memHost) inject(step string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fail[step] = err
}

func (h *memHost) Start(ctx context.Context, m eqvps.StartMachine) (eqvps.Machine, error) {
	if h.entered != nil {
		h.entered <- m.ID
	}
	if h.starting != nil {
		select {
		case <-h.starting:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err := h.failure("start"); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.started++
	return h.place(m), nil
}

// place makes the one machine of an id. The caller holds the lock.
func (h *memHost) place(m eqvps.StartMachine) *memMachine {
	vm := &memMachine{done: make(chan struct{}), env: m.Env, network: m.Network}
	if old := h.machines[m.ID]; old != nil {
		old.die()
	}
	h.machines[m.ID] = vm
	delete(h.paused, m.ID)
	return vm
}

func (h *memHost) Pause(_ context.Context, id string, key []byte) error {
	if len(key) != 32 {
		return errors.New("no key")
	}
	if err := h.failure("pause"); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	vm := h.machines[id]
	if vm == nil || vm.dead() {
		return errors.New("gone")
	}
	vm.die()
	delete(h.machines, id)
	h.paused[id] = true
	return nil
}

func (h *memHost) Resume(_ context.Context, m eqvps.StartMachine) (eqvps.Machine, error) {
	if err := h.failure("resume"); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if vm := h.machines[m.ID]; vm != nil && !vm.dead() {
		return vm, nil
	}
	if !h.paused[m.ID] {
		return nil, errors.New("not paused")
	}
	return h.place(m), nil
}

func (h *memHost) Reboot(_ context.Context, m eqvps.StartMachine) (eqvps.Machine, error) {
	if err := h.failure("reboot"); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reboots++
	return h.place(m), nil
}

func (h *memHost) Paused(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.paused[id]
}

func (h *memHost) Adopt(_ context.Context, id string) (eqvps.Machine, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	vm := h.machines[id]
	if vm == nil || vm.dead() {
		return nil, errors.New("gone")
	}
	return vm, nil
}

func (h *memHost) Records() ([]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var ids []string
	for id := range h.machines {
		ids = append(ids, id)
	}
	for id := range h.paused {
		ids = append(ids, id)
	}
	return ids, nil
}

func (h *memHost) Destroy(_ context.Context, id string) error {
	if err := h.failure("destroy"); err != nil {
		return err
	}
	// A machine that somebody else is destroying cannot be destroyed.
	if _, busy := h.destroying.LoadOrStore(id, true); busy {
		return errors.New("it is being destroyed")
	}
	defer h.destroying.Delete(id)
	for range 100 {
		runtime.Gosched() // let others come in between
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if vm := h.machines[id]; vm != nil {
		vm.die()
		delete(h.machines, id)
	}
	delete(h.paused, id)
	return nil
}

func (h *memHost) machine(id string) *memMachine {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.machines[id]
}

func (h *memHost) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.machines) + len(h.paused)
}

// memMachine runs no commands: Exec blocks until it is released, or fails as a
// lost guest does when the machine dies.
type memMachine struct {
	set     sync.Mutex
	env     eqvps.Env
	network eqvps.NetworkPolicy
	once    sync.Once
	done    chan struct{}
	// cpu, if set, is what CPUTime says.
	cpu   atomic.Pointer[func() time.Duration]
	cause eqvps.Reason
	// onAsk, if set, is called when the guest is asked about its tasks.
	onAsk atomic.Pointer[func()]
	// release, if set, holds Exec back until it is closed.
	release chan struct{}
	// lost, if set, breaks the channel to the guest when it is closed.
	lost chan struct{}

	tasks struct {
		sync.Mutex
		eqvps.TaskActivity
		err   error
		asked int
	}
}

func (m *memMachine) die() { m.once.Do(func() { close(m.done) }) }

func (m *memMachine) dead() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

func (m *memMachine) Exec(ctx context.Context, _ eqvps.ExecRequest, _ eqvps.Output) (eqvps.ExitStatus, error) {
	release := m.release
	if release == nil {
		release = make(chan struct{})
		close(release)
	}
	select {
	case <-release:
		return eqvps.ExitStatus{}, nil
	case <-ctx.Done():
		return eqvps.ExitStatus{}, ctx.Err()
	case <-m.lost:
		return eqvps.ExitStatus{}, eqvps.WrapError(eqvps.CodeUnreachable, io.EOF)
	case <-m.done:
		return eqvps.ExitStatus{}, eqvps.WrapError(eqvps.CodeUnreachable, io.ErrUnexpectedEOF)
	}
}

func (m *memMachine) Upload(context.Context, eqvps.UploadRequest) (eqvps.FileInfo, error) {
	return eqvps.FileInfo{}, nil
}

func (m *memMachine) UploadPart(context.Context, eqvps.UploadPart) (eqvps.UploadProgress, error) {
	return eqvps.UploadProgress{}, nil
}

func (m *memMachine) MakeDir(context.Context, string, fs.FileMode) (eqvps.FileInfo, error) {
	return eqvps.FileInfo{}, nil
}

func (m *memMachine) Move(context.Context, eqvps.Move) (eqvps.FileInfo, error) {
	return eqvps.FileInfo{}, nil
}

func (m *memMachine) Remove(context.Context, string, bool) (eqvps.Removal, error) {
	return eqvps.Removal{}, nil
}

func (m *memMachine) Download(context.Context, eqvps.DownloadRequest) (eqvps.FileInfo, io.ReadCloser, error) {
	return eqvps.FileInfo{}, io.NopCloser(eofReader{}), nil
}

func (m *memMachine) Stat(context.Context, string) (eqvps.FileInfo, error) {
	return eqvps.FileInfo{}, nil
}

func (m *memMachine) ListFiles(context.Context, string, string, int) ([]eqvps.FileInfo, bool, error) {
	return nil, false, nil
}

func (m *memMachine) StartTask(_ context.Context, req eqvps.StartTask) (*eqvps.Task, error) {
	m.tasks.Lock()
	defer m.tasks.Unlock()
	m.tasks.Running++
	return &eqvps.Task{ID: req.ID, State: eqvps.TaskRunning, ExitStatus: eqvps.ExitStatus{Duration: req.Timeout}}, nil
}

func (m *memMachine) ReadTask(context.Context, string, eqvps.ReadTask) (*eqvps.TaskOutput, error) {
	return &eqvps.TaskOutput{}, nil
}

func (m *memMachine) ListTasks(context.Context) ([]*eqvps.Task, error) { return nil, nil }

func (m *memMachine) KillTask(context.Context, string) (*eqvps.Task, error) {
	m.tasks.Lock()
	defer m.tasks.Unlock()
	m.tasks.Running--
	m.tasks.LastEnd = time.Now()
	return &eqvps.Task{State: eqvps.TaskKilled}, nil
}

func (m *memMachine) TaskActivity(context.Context) (eqvps.TaskActivity, error) {
	if f := m.onAsk.Load(); f != nil {
		(*f)()
	}
	m.tasks.Lock()
	defer m.tasks.Unlock()
	m.tasks.asked++
	return m.tasks.TaskActivity, m.tasks.err
}

func (m *memMachine) SetEnv(_ context.Context, c eqvps.EnvChange) error {
	m.set.Lock()
	defer m.set.Unlock()
	env, err := c.Apply(m.env)
	if err == nil {
		m.env = env
	}
	return err
}

func (m *memMachine) SetNetwork(_ context.Context, p eqvps.NetworkPolicy) error {
	m.set.Lock()
	defer m.set.Unlock()
	m.network = p
	return nil
}

func (m *memMachine) Image() string              { return "img_test" }
func (m *memMachine) Ping(context.Context) error { return nil }
func (m *memMachine) Cause() eqvps.Reason        { return cmp.Or(m.cause, eqvps.ReasonError) }

func (m *memMachine) CPUTime() (time.Duration, error) {
	if f := m.cpu.Load(); f != nil {
		return (*f)(), nil
	}
	return 7 * time.Second, nil
}

func (m *memMachine) EgressBytes() (uint64, error) { return 11, nil }
func (m *memMachine) Done() <-chan struct{}        { return m.done }
func (m *memMachine) Close() error                 { return nil }

type eofReader struct{}

func (eofReader) Read([]byte) (int, error) { return 0, io.EOF }

// memKeys seals by wrapping, which is enough to see what is bound to what.
type memKeys struct{}

func (memKeys) Seal(plain, context []byte) ([]byte, error) {
	return append(append([]byte(nil), context...), append([]byte{0}, plain...)...), nil
}

func (memKeys) Rotate() error        { return nil }
func (memKeys) Retire() (int, error) { return 0, nil }

func (memKeys) Open(sealed, context []byte) ([]byte, error) {
	plain, ok := bytes.CutPrefix(sealed, append(append([]byte(nil), context...), 0))
	if !ok {
		return nil, errors.New("wrong context")
	}
	return plain, nil
}
