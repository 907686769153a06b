package eqvps

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Env are environment variables. Their values may be secrets: printed, logged
// or marshalled it shows its names only, also as a part of something else.
type Env map[string]string

// Format prints the names, whatever the verb.
func (e Env) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "%q", EnvKeys(e)) }

// MarshalJSON renders the names.
func (e Env) MarshalJSON() ([]byte, error) { return json.Marshal(EnvKeys(e)) }

// ValidateEnv checks environment variables: names of letters, digits and
// underscores that do not start with a digit; values of any bytes but NUL. A
// message never quotes a value: it may be a secret.
func ValidateEnv(env map[string]string) error {
	if len(env) > MaxEnvVars {
		return Errorf(CodeInvalidValue, "There are %d environment variables; at most %d are allowed.", len(env), MaxEnvVars)
	}
	size := 0
	// In order, so that the same mistake always gets the same answer.
	for _, k := range EnvKeys(env) {
		v := env[k]
		if err := validateEnvName(k); err != nil {
			return err
		}
		if strings.IndexByte(v, 0) >= 0 {
			return Errorf(CodeInvalidValue, "The value of the environment variable %s holds a NUL byte.", k)
		}
		if len(v) > MaxEnvValueBytes {
			return Errorf(CodeTooLarge, "The value of the environment variable %s has %d bytes; at most %d are allowed.", k, len(v), MaxEnvValueBytes)
		}
		size += len(k) + len(v)
	}
	if size > MaxEnvBytes {
		return Errorf(CodeTooLarge, "The environment variables take %d bytes; at most %d are allowed.", size, MaxEnvBytes)
	}
	return nil
}

func validateEnvName(name string) error {
	if validEnvName(name) {
		return nil
	}
	return Errorf(CodeInvalidValue, "The environment variable name %q is not allowed: use letters, digits and underscores, not a digit first.", shownName(name))
}

// shownName is what a message may quote of a name that is none: somebody may
// have put NAME=VALUE in its place.
func shownName(s string) string {
	s, _, _ = strings.Cut(s, "=")
	return s[:min(len(s), 80)]
}

func validEnvName(s string) bool {
	if s == "" || len(s) > 256 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		digit := c >= '0' && c <= '9'
		if !letter && (!digit || i == 0) {
			return false
		}
	}
	return true
}

// EnvKeys returns the sorted names of variables: all that is ever shown of them.
func EnvKeys(env map[string]string) []string {
	keys := make([]string, 0, len(env))
	for k := range env {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// EnvChange changes the variables of a sandbox for the commands to come.
type EnvChange struct {
	Set    Env
	Remove []string // one that is not there is no error
}

// Validate checks the change by itself; Apply checks what comes of it.
func (c EnvChange) Validate() error {
	if len(c.Set) == 0 && len(c.Remove) == 0 {
		return Errorf(CodeInvalidRequest, "There is no environment variable to set or to remove.")
	}
	if len(c.Remove) > MaxEnvVars {
		return Errorf(CodeInvalidValue, "%d environment variables are to be removed; at most %d are allowed at once.", len(c.Remove), MaxEnvVars)
	}
	for _, name := range c.Remove {
		if err := validateEnvName(name); err != nil {
			return err
		}
		if _, both := c.Set[name]; both {
			return Errorf(CodeInvalidRequest, "The environment variable %s is to be both set and removed.", name)
		}
	}
	return ValidateEnv(c.Set)
}

// Apply returns the variables after the change, checked as a whole; env stays
// as it is.
func (c EnvChange) Apply(env Env) (Env, error) {
	changed := maps.Clone(env)
	if changed == nil {
		changed = Env{}
	}
	for _, name := range c.Remove {
		delete(changed, name)
	}
	maps.Copy(changed, c.Set)
	return changed, ValidateEnv(changed)
}

// Keys returns the sorted names of the variables after the change.
// CodeInvalidValue when they are too many.
func (c EnvChange) Keys(keys []string) ([]string, error) {
	after := EnvKeys(c.Set)
	for _, k := range keys {
		if _, again := c.Set[k]; !again && !slices.Contains(c.Remove, k) {
			after = append(after, k)
		}
	}
	if len(after) > MaxEnvVars {
		return nil, Errorf(CodeInvalidValue, "The sandbox would have %d environment variables; at most %d are allowed.", len(after), MaxEnvVars)
	}
	slices.Sort(after)
	return after, nil
}
