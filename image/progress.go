package image

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Event tells how far a build is.
type Event struct {
	Step    int           // from 1; 0 while waiting for another build
	Steps   int           // how many there are
	Name    string        // what the step does, e.g. "installing Debian"
	Detail  string        // what it is busy with; empty when it begins, and when it only shows that time passes
	Done    bool          // the step is finished
	Elapsed time.Duration // since the step began
}

// Progress receives the events of a build, one after another.
type Progress func(Event)

// heartbeat is how often a silent step shows that it still runs.
const heartbeat = 5 * time.Second

// PrintProgress returns a Progress that writes lines to w: one as a step begins,
// one as it ends, and between them what it is busy with, at most one line in
// every two seconds.
func PrintProgress(w io.Writer) Progress {
	var last time.Duration
	return func(e Event) {
		switch {
		case e.Step == 0:
			fmt.Fprintln(w, e.Name)
		case e.Done:
			fmt.Fprintf(w, "[%d/%d] %s: done in %.1f s\n", e.Step, e.Steps, e.Name, e.Elapsed.Seconds())
		case e.Elapsed == 0:
			last = 0
			fmt.Fprintf(w, "[%d/%d] %s\n", e.Step, e.Steps, e.Name)
		case e.Elapsed-last >= 2*time.Second:
			last = e.Elapsed
			line := fmt.Sprintf("[%d/%d] %s (%.0f s) %s", e.Step, e.Steps, e.Name, e.Elapsed.Seconds(), e.Detail)
			fmt.Fprintln(w, strings.TrimSpace(line))
		}
	}
}

// stepReporter sends one step's events; details come from the writers of child
// processes, the heartbeat from a timer.
type stepReporter struct {
	mu     sync.Mutex
	report Progress
	event  Event
	began  time.Time
	timer  *time.Timer
}

func beginStep(report Progress, e Event) *stepReporter {
	s := &stepReporter{report: report, event: e, began: time.Now()}
	report(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(heartbeat, func() { s.detail("") })
	return s
}

func (s *stepReporter) detail(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.event.Done {
		return
	}
	s.timer.Reset(heartbeat)
	e := s.event
	e.Detail, e.Elapsed = line, time.Since(s.began)
	s.report(e)
}

// end stops the heartbeat and, if the step succeeded, says so.
func (s *stepReporter) end(ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer.Stop()
	s.event.Done = true
	if ok {
		e := s.event
		e.Elapsed = time.Since(s.began)
		s.report(e)
	}
}
