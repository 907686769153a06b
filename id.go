package eqvps

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
)

// newID returns prefix + 20 hex digits: 80 random bits.
func newID(prefix string) string {
	b := make([]byte, 10)
	rand.Read(b) // never fails (crypto/rand, Go 1.24)
	return prefix + hex.EncodeToString(b)
}

// Prefixes of ids, so that a person sees what an id names.
const (
	sandboxPrefix = "sb_"
	tokenPrefix   = "tok_"
	taskPrefix    = "task_"
	accountPrefix = "acc_"
)

// validID reports whether id has the form that newID gives.
func validID(id, prefix string) bool {
	rest, ok := strings.CutPrefix(id, prefix)
	if !ok || len(rest) != 20 {
		return false
	}
	return strings.Trim(rest, "0123456789abcdef") == ""
}
