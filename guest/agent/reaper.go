package agent

import (
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reaper collects every child of this process: the commands it has started and,
// being PID 1, whatever they leave behind.
//
// One thread blocks in waitid. Where there is no child there can be no orphan
// either, so it then sleeps until the next start: an idle guest has nothing to
// poll. A child is looked at first and reaped under the lock that also covers
// starting, so a process id is never free while it is being looked up.
type reaper struct {
	mu      sync.Mutex
	waiters map[int]chan<- exit
	started chan struct{} // capacity 1: a child may exist
	once    sync.Once

	// score is this process's oom_score_adj, open for writing, or -1. Commands
	// must not inherit that the agent is never killed, so it is ordinary while
	// one is started.
	score int
}

// exit is how a child ended, and when it was noticed.
type exit struct {
	status syscall.WaitStatus
	at     time.Time
}

// children is this process's reaper. There is one, as a process has one set of
// children.
var children = &reaper{waiters: make(map[int]chan<- exit), started: make(chan struct{}, 1), score: -1}

// start starts a process. The channel delivers its end.
func (r *reaper) start(argv0 string, argv []string, attr *syscall.ProcAttr) (done <-chan exit, err error) {
	r.once.Do(func() { go r.run() })
	ch := make(chan exit, 1)
	r.mu.Lock()
	r.setScore("0")
	pid, err := syscall.ForkExec(argv0, argv, attr)
	r.setScore("-1000")
	if err == nil {
		r.waiters[pid] = ch
	}
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case r.started <- struct{}{}:
	default:
	}
	return ch, nil
}

func (r *reaper) setScore(s string) {
	if r.score >= 0 {
		_, _ = unix.Write(r.score, []byte(s))
	}
}

func (r *reaper) run() {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT, nil)
		switch err {
		case nil:
			r.reap()
		case unix.ECHILD:
			<-r.started
		}
	}
}

// reap takes every child that has ended.
func (r *reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if ch := r.waiters[pid]; ch != nil {
			delete(r.waiters, pid)
			ch <- exit{ws, time.Now()}
		}
	}
}
