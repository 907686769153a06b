package agent

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/channel"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

// Config is what an agent needs to know of its machine.
type Config struct {
	Version     int    // of the protocol
	CgroupDir   string // commands get a cgroup each below this one
	CgroupRoot  string // the top of all cgroups, where the agent has the machine to itself; else ""
	Environment string // file of variables for every command; see EnvironmentFile
	SpoolDir    string // folder on the disk for the output of background tasks
	OOMScore    int    // open /proc/self/oom_score_adj, or -1 where the agent is not protected
	// Renew takes an identity, SetClock sets the machine's clock, Shutdown ends
	// the machine.
	Renew    func(Identity) error
	SetClock func(time.Time) error
	Shutdown func()
}

// Agent serves sessions.
type Agent struct {
	cfg   Config
	run   *runner
	tasks *tasks
	parts partials
	env   *environment
	http  http.Server

	foreground foreground
	freezer    freezer
	suspending sync.Mutex // one suspend at a time
	mu         sync.Mutex
	leaving    leaving // what to do when the session ends
}

// New makes an agent.
func New(cfg Config) (*Agent, error) {
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	a := &Agent{cfg: cfg, run: &runner{groups: newCgroups(cfg.CgroupDir), null: null}}
	a.freezer = freezer{groups: a.run.groups, root: cfg.CgroupRoot}
	a.tasks = &tasks{run: a.run, spool: &spool{dir: cfg.SpoolDir, fd: -1}}
	if cfg.OOMScore >= 0 {
		children.score = cfg.OOMScore
	}
	a.env = newEnvironment(readEnvironment(cfg.Environment))
	a.http.Handler = a.routes()
	a.http.BaseContext = sessionContext
	a.http.ErrorLog = log.New(io.Discard, "", 0)
	return a, nil
}

// serve handles one session until it ends.
func (a *Agent) serve(c net.Conn) {
	mux, err := channel.MuxGuest(c)
	if err != nil {
		_ = c.Close()
		return
	}
	_ = a.http.Serve(session{mux, c.(interface{ Done() <-chan struct{} }).Done()})
	_ = mux.Close()
}

func (a *Agent) routes() http.Handler {
	m := http.NewServeMux()
	for pattern, h := range map[string]func(http.ResponseWriter, *http.Request) error{
		"GET " + wire.PathPing:         a.ping,
		"POST " + wire.PathClock:       a.clock,
		"POST " + wire.PathFreeze:      a.freeze,
		"POST " + wire.PathSuspend:     a.suspend,
		"POST " + wire.PathSync:        a.sync,
		"POST " + wire.PathShutdown:    a.shutdown,
		"POST " + wire.PathExec:        a.exec,
		"PUT " + wire.PathFile:         a.upload,
		"GET " + wire.PathFile:         a.download,
		"DELETE " + wire.PathFile:      a.remove,
		"PUT " + wire.PathPart:         a.uploadPart,
		"POST " + wire.PathDir:         a.makeDir,
		"POST " + wire.PathMove:        a.move,
		"GET " + wire.PathStat:         a.stat,
		"GET " + wire.PathList:         a.list,
		"POST " + wire.PathTask:        a.startTask,
		"GET " + wire.PathTask:         a.readTask,
		"DELETE " + wire.PathTask:      a.killTask,
		"GET " + wire.PathTasks:        a.listTasks,
		"GET " + wire.PathTaskActivity: a.taskActivity,
		"PATCH " + wire.PathEnv:        a.changeEnv,
	} {
		m.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := h(w, r); err != nil {
				fail(w, err)
			}
		})
	}
	return m
}

func reply(w http.ResponseWriter, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return replyBytes(w, b)
}

// The agent's own answers need no dates and no guesses at their type.
func bareHeader(w http.ResponseWriter) {
	w.Header()["Date"] = nil
	w.Header()["Content-Type"] = nil
}

func replyBytes(w http.ResponseWriter, b []byte) error {
	bareHeader(w)
	_, _ = w.Write(b)
	return nil
}

func fail(w http.ResponseWriter, err error) {
	b, _ := json.Marshal(wire.NewFailure(err))
	bareHeader(w)
	w.WriteHeader(eqvps.ErrorCode(err).Kind().Status)
	_, _ = w.Write(b)
}

func (a *Agent) ping(w http.ResponseWriter, r *http.Request) error {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return err
	}
	return replyBytes(w, wire.Pong{Version: a.cfg.Version, UptimeNS: up.Nano(), UnixNano: time.Now().UnixNano()}.Encode())
}

func (a *Agent) clock(w http.ResponseWriter, r *http.Request) error {
	var c wire.Clock
	if err := json.NewDecoder(io.LimitReader(r.Body, wire.MaxReply)).Decode(&c); err != nil {
		return err
	}
	if err := a.cfg.SetClock(time.Unix(0, c.UnixNano)); err != nil {
		return err
	}
	return reply(w, struct{}{})
}

func (a *Agent) freeze(w http.ResponseWriter, r *http.Request) error {
	if err := a.run.groups.killAll(); err != nil {
		return err
	}
	unix.Sync()
	a.mu.Lock()
	a.leaving = forget
	a.mu.Unlock()
	return reply(w, struct{}{})
}

func (a *Agent) sync(w http.ResponseWriter, r *http.Request) error {
	unix.Sync()
	return reply(w, struct{}{})
}

func (a *Agent) shutdown(w http.ResponseWriter, r *http.Request) error {
	_ = a.run.groups.killAll()
	unix.Sync()
	if err := reply(w, struct{}{}); err != nil {
		return err
	}
	_ = http.NewResponseController(w).Flush()
	a.cfg.Shutdown()
	return nil
}

func (a *Agent) exec(w http.ResponseWriter, r *http.Request) error {
	c, err := readCommand(r.Body)
	if err != nil {
		return err
	}
	ctx, leave, err := a.foreground.enter(r.Context())
	if err != nil {
		return err
	}
	defer leave()
	c.env = a.env.list(c.env)
	g, err := a.run.groups.take()
	if err != nil {
		return err
	}
	defer a.run.groups.release(g)
	bareHeader(w)
	// The last frame marks the end, so the answer needs no chunks, each of
	// which would be three writes.
	w.Header().Set("Transfer-Encoding", "identity")
	var mu sync.Mutex
	rc := http.NewResponseController(w)
	emit := func(frame []byte) error {
		mu.Lock()
		defer mu.Unlock()
		if _, err := w.Write(frame); err != nil {
			return err
		}
		return rc.Flush()
	}
	res, err := a.run.run(ctx, g, c, emit)
	if r.Context().Err() != nil {
		return nil // nobody is there to be told
	}
	kind, last := byte(wire.FrameResult), res.Encode()
	if err != nil {
		kind = wire.FrameFailed
		if last, err = json.Marshal(wire.NewFailure(err)); err != nil {
			return err
		}
	}
	_ = emit(wire.Frame(kind, last))
	return nil
}

func readCommand(body io.Reader) (command, error) {
	var size [4]byte
	if _, err := io.ReadFull(body, size[:]); err != nil {
		return command{}, badRequest(err)
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > wire.MaxHead {
		return command{}, badRequest(errors.New("the head is too long"))
	}
	head := make([]byte, n)
	if _, err := io.ReadFull(body, head); err != nil {
		return command{}, badRequest(err)
	}
	var h wire.ExecHead
	if err := h.Decode(head); err != nil {
		return command{}, badRequest(err)
	}
	stdin, err := io.ReadAll(io.LimitReader(body, eqvps.MaxStdinBytes+1))
	if err != nil || len(stdin) > eqvps.MaxStdinBytes {
		return command{}, badRequest(errors.Join(err, errors.New("stdin is incomplete or too long")))
	}
	if (len(h.Command) == 0) == (len(h.Argv) == 0) || h.TimeoutNS <= 0 {
		return command{}, badRequest(errors.New("the head is not complete"))
	}
	return command{
		line: string(h.Command), argv: texts(h.Argv), cwd: string(h.Cwd),
		env: variables(h.Env), stdin: stdin, timeout: time.Duration(h.TimeoutNS),
	}, nil
}

func texts(list [][]byte) []string {
	out := make([]string, len(list))
	for i, b := range list {
		out[i] = string(b)
	}
	return out
}

// variables takes NAME=VALUE strings; what is not one is dropped.
func variables(list [][]byte) []string {
	return slices.DeleteFunc(texts(list), func(kv string) bool { return strings.IndexByte(kv, '=') < 1 })
}

func badRequest(cause error) error {
	return &eqvps.Error{Code: eqvps.CodeInvalidRequest, Message: "The request to the sandbox is not well formed.", Cause: cause}
}

// Run serves the host on port until the port fails for good.
func (a *Agent) Run(port io.ReadWriter) error {
	ep := &channel.Endpoint{Port: port, Version: a.cfg.Version, Serve: a.serve}
	ep.Go = func(hello []byte) error {
		err := a.begin(hello, ep.AtGate)
		if err == nil {
			ep.AtGate = false
		}
		return err
	}
	ep.Ended = func() {
		a.mu.Lock()
		how := a.leaving
		a.leaving = stay
		a.mu.Unlock()
		if how == forget {
			a.env.replace(nil)
			debug.FreeOSMemory()
		}
		ep.AtGate = ep.AtGate || how != stay
	}
	return ep.Run()
}

// ErrHostGone is what a port's Read returns, once, when its host side is
// closed. The next Read waits until there is a host.
var ErrHostGone = channel.ErrHostGone

// Identity is what makes a machine one of its own.
type Identity = wire.Identity
