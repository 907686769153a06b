package agent

import (
	"bytes"
	"os"
	"slices"
	"strings"
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

// lookup returns the value of a variable.
func lookup(env []string, name string) string {
	for _, kv := range slices.Backward(env) {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}
