package agent

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

// EnvironmentFile is where an image keeps the variables that every command
// starts with: NAME=VALUE lines.
const EnvironmentFile = "/etc/eqvps/environment"

// fallbackEnv is used where the image says nothing.
var fallbackEnv = []string{
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME=/root",
	"USER=root",
	"LOGNAME=root",
	"SHELL=/bin/bash",
	"LANG=C.UTF-8",
}

// readEnvironment returns the base environment.
func readEnvironment(file string) []string {
	b, err := os.ReadFile(file)
	if err != nil {
		return fallbackEnv
	}
	var env []string
	for line := range bytes.Lines(b) {
		line = bytes.TrimSpace(line)
		if i := bytes.IndexByte(line, '='); i > 0 && line[0] != '#' && bytes.IndexByte(line, 0) < 0 {
			env = append(env, string(line))
		}
	}
	return mergeEnv(fallbackEnv, env)
}

// mergeEnv adds variables to an environment; the added ones win.
func mergeEnv(base, added []string) []string {
	env := slices.Clone(base)
	for _, kv := range added {
		name := kv[:strings.IndexByte(kv, '=')+1]
		i := slices.IndexFunc(env, func(have string) bool { return strings.HasPrefix(have, name) })
		if i < 0 {
			env = append(env, kv)
		} else {
			env[i] = kv
		}
	}
	return env
}

// environment is what commands start with. The sandbox's own variables are kept
// nowhere else.
type environment struct {
	base []string // the image's
	all  atomic.Pointer[[]string]

	mu  sync.Mutex
	own []string
}

func newEnvironment(base []string) *environment {
	e := &environment{base: base}
	e.replace(nil)
	return e
}

// list returns the environment of a command that brings some variables of its
// own.
func (e *environment) list(added []string) []string { return mergeEnv(*e.all.Load(), added) }

// replace gives the sandbox other variables.
func (e *environment) replace(own []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.set(own)
}

// set is called with the lock held.
func (e *environment) set(own []string) {
	all := mergeEnv(e.base, own)
	e.own = own
	e.all.Store(&all)
}

// change makes a change that leaves everything as it is when what comes of it
// is not allowed.
func (e *environment) change(c eqvps.EnvChange) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	env, err := c.Apply(envMap(e.own))
	if err != nil {
		return err
	}
	e.set(texts(wire.EnvList(env)))
	return nil
}

func envMap(list []string) eqvps.Env {
	env := make(eqvps.Env, len(list))
	for _, kv := range list {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	return env
}

func (a *Agent) changeEnv(w http.ResponseWriter, r *http.Request) error {
	b, err := io.ReadAll(io.LimitReader(r.Body, wire.MaxEnvChange+1))
	if err != nil || len(b) > wire.MaxEnvChange {
		return badRequest(errors.Join(err, errors.New("the change is incomplete or too long")))
	}
	var c wire.EnvChange
	if err := c.Decode(b); err != nil {
		return badRequest(err)
	}
	change := eqvps.EnvChange{Set: envMap(variables(c.Set)), Remove: texts(c.Remove)}
	if err := a.env.change(change); err != nil {
		return err
	}
	return replyBytes(w, nil)
}

// lookup returns the value of a variable.
func lookup(env []string, name string) string {
	for _, kv := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}
