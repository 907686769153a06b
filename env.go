package eqvps

import (
	"slices"
	"strings"
)

// ValidateEnv checks environment variables: names of letters, digits and
// underscores that do not start with a digit; values of any bytes but NUL. A
// message never quotes a value: it may be a secret.
func ValidateEnv(env map[string]string) error {
	if len(env) > MaxEnvVars {
		return Errorf(CodeInvalidValue, "There are %d environment variables; at most %d are allowed.", len(env), MaxEnvVars)
	}
	size := 0
	for k, v := range env {
		if !validEnvName(k) {
			return Errorf(CodeInvalidValue, "The environment variable name %.80q is not allowed: use letters, digits and underscores, not a digit first.", k)
		}
		if strings.IndexByte(v, 0) >= 0 {
			return Errorf(CodeInvalidValue, "The value of the environment variable %s holds a NUL byte.", k)
		}
		size += len(k) + len(v)
	}
	if size > MaxEnvBytes {
		return Errorf(CodeTooLarge, "The environment variables take %d bytes; at most %d are allowed.", size, MaxEnvBytes)
	}
	return nil
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
