package control

import (
	"crypto/rand"
	"encoding/json"

	"github.com/eqvps/eqvps"
)

// pauseKeyBytes is the size of the key that encrypts a sandbox's paused memory.
const pauseKeyBytes = 32

// vault is what a persistent sandbox needs to come back. It is stored
// encrypted only.
type vault struct {
	Env eqvps.Env
	Key []byte
}

// storedVault is a vault as it is sealed: values may hold any bytes, which text
// in JSON cannot.
type storedVault struct {
	Env map[string][]byte `json:"env"`
	Key []byte            `json:"key"`
}

func newPauseKey() []byte {
	key := make([]byte, pauseKeyBytes)
	rand.Read(key) // never fails (crypto/rand, Go 1.24)
	return key
}

func (s *Service) seal(id string, v vault) ([]byte, error) {
	stored := storedVault{Env: map[string][]byte{}, Key: v.Key}
	for name, value := range v.Env {
		stored.Env[name] = []byte(value)
	}
	b, err := json.Marshal(stored)
	if err != nil {
		return nil, eqvps.WrapError(eqvps.CodeInternal, err)
	}
	sealed, err := s.keys.Seal(b, eqvps.SandboxContext(id))
	if err != nil {
		return nil, eqvps.WrapError(eqvps.CodeInternal, err)
	}
	return sealed, nil
}

func (s *Service) open(id string, sealed []byte) (vault, error) {
	b, err := s.keys.Open(sealed, eqvps.SandboxContext(id))
	if err != nil {
		return vault{}, eqvps.WrapError(eqvps.CodeInternal, err)
	}
	var stored storedVault
	if err := json.Unmarshal(b, &stored); err != nil {
		return vault{}, eqvps.WrapError(eqvps.CodeInternal, err)
	}
	v := vault{Env: eqvps.Env{}, Key: stored.Key}
	for name, value := range stored.Env {
		v.Env[name] = string(value)
	}
	return v, nil
}
