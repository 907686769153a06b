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
	env := slices.Clone(fallbackEnv)
	for line := range bytes.Lines(b) {
		line = bytes.TrimSpace(line)
		if i := bytes.IndexByte(line, '='); i > 0 && line[0] != '#' && bytes.IndexByte(line, 0) < 0 {
			env = append(env, string(line))
		}
	}
	return mergeEnv(env)
}

// mergeEnv joins lists of NAME=VALUE; a later one wins.
func mergeEnv(lists ...[]string) []string {
	var env []string
	at := make(map[string]int)
	for _, list := range lists {
		for _, kv := range list {
			name, _, _ := strings.Cut(kv, "=")
			if i, ok := at[name]; ok {
				env[i] = kv
				continue
			}
			at[name] = len(env)
			env = append(env, kv)
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
