package wire

import (
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/eqvps/eqvps"
)

// joinEnv puts variables together that travel as text and as bytes.
func joinEnv(text map[string]string, raw map[string][]byte) (eqvps.Env, error) {
	if len(raw) == 0 {
		return text, nil
	}
	env := make(eqvps.Env, len(text)+len(raw))
	maps.Copy(env, text)
	for name, value := range raw {
		if _, twice := env[name]; twice {
			return nil, eqvps.Errorf(eqvps.CodeInvalidRequest, "Give each variable either in env or in env_base64; one is in both.")
		}
		env[name] = string(value)
	}
	return env, nil
}

// SplitEnv is the reverse: what is no UTF-8 cannot travel as text.
func SplitEnv(env map[string]string) (text map[string]string, raw map[string][]byte) {
	for name, value := range env {
		if utf8.ValidString(value) {
			if text == nil {
				text = map[string]string{}
			}
			text[name] = value
		} else {
			if raw == nil {
				raw = map[string][]byte{}
			}
			raw[name] = []byte(value)
		}
	}
	return text, raw
}

// PutSecret is the value of a secret: exactly one of the two fields.
type PutSecret struct {
	Value       *string `json:"value,omitempty" doc:"The value as text, at most 64 KiB; no NUL."`
	ValueBase64 []byte  `json:"value_base64,omitempty" doc:"The value as bytes; either this or value."`
}

// NewPutSecret renders a value.
func NewPutSecret(value string) PutSecret {
	if utf8.ValidString(value) {
		return PutSecret{Value: &value}
	}
	return PutSecret{ValueBase64: []byte(value)}
}

// Domain returns the value.
func (p PutSecret) Domain() (string, error) {
	switch {
	case (p.Value == nil) == (p.ValueBase64 == nil):
		return "", eqvps.Errorf(eqvps.CodeInvalidRequest, "Give either value or value_base64.")
	case p.Value != nil:
		return *p.Value, nil
	}
	return string(p.ValueBase64), nil
}

// Secret is a secret of an account; the value is not part of it.
type Secret struct {
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at" doc:"When its value was last set."`
}

// NewSecretRecord renders a record.
func NewSecretRecord(s *eqvps.Secret) Secret {
	return Secret{Name: s.Name, CreatedAt: s.CreatedAt.UTC(), UpdatedAt: s.UpdatedAt.UTC()}
}

// SecretList is an account's secrets by name.
type SecretList struct {
	Data []Secret `json:"data" nullable:"false"`
}

// SecretDeleted tells that a secret is gone.
type SecretDeleted struct {
	Name    string `json:"name"`
	Deleted bool   `json:"deleted"`
}

// EnvKeys are the names of a sandbox's variables.
type EnvKeys struct {
	EnvKeys []string `json:"env_keys" nullable:"false" doc:"Names, sorted. Values are never returned."`
}

// NewEnvKeys renders the names of a sandbox's variables.
func NewEnvKeys(sb *eqvps.Sandbox) EnvKeys {
	if sb.EnvKeys == nil {
		return EnvKeys{[]string{}}
	}
	return EnvKeys{sb.EnvKeys}
}

// PatchEnv changes the variables of a sandbox.
type PatchEnv struct {
	Env       map[string]*string `json:"env,omitempty" doc:"Values by name; null removes a variable. Those that are not named stay as they are."`
	EnvBase64 map[string][]byte  `json:"env_base64,omitempty" doc:"Values that need not be text."`
}

// NewPatchEnv renders a change.
func NewPatchEnv(c eqvps.EnvChange) PatchEnv {
	text, raw := SplitEnv(c.Set)
	p := PatchEnv{EnvBase64: raw}
	if len(text)+len(c.Remove) > 0 {
		p.Env = map[string]*string{}
	}
	for name, value := range text {
		p.Env[name] = &value
	}
	for _, name := range c.Remove {
		p.Env[name] = nil
	}
	return p
}

// Domain returns the change.
func (p PatchEnv) Domain() (eqvps.EnvChange, error) {
	text := map[string]string{}
	var c eqvps.EnvChange
	for name, value := range p.Env {
		if value == nil {
			c.Remove = append(c.Remove, name)
		} else {
			text[name] = *value
		}
	}
	slices.Sort(c.Remove)
	var err error
	c.Set, err = joinEnv(text, p.EnvBase64)
	return c, err
}

// Rotation is what a change of the server's key did.
type Rotation struct {
	Resealed int `json:"resealed" doc:"Values that were encrypted anew."`
	Retired  int `json:"retired" doc:"Old keys that were dropped."`
}
