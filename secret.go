package eqvps

import (
	"context"
	"slices"
	"time"
)

// Sealer encrypts what must not lie in clear on the host. Each call of Seal
// uses a fresh data key, which is itself encrypted with the server's key
// (envelope encryption).
type Sealer interface {
	// Seal encrypts plain. The same context must be given to Open: it binds the
	// result to what it belongs to, so that one tenant's cannot be put in
	// another's place.
	Seal(plain, context []byte) ([]byte, error)
	// Open decrypts what Seal returned.
	Open(sealed, context []byte) ([]byte, error)
}

// Keyring is a Sealer whose key can be replaced. What was sealed with any key
// of it can be opened, so a crash between any two steps loses nothing.
type Keyring interface {
	Sealer
	// Rotate adds a new key, with which Seal works from then on.
	Rotate() error
	// Retire drops all keys but the newest for good, and returns how many that
	// were. Everything kept must be sealed with the newest by then.
	Retire() (int, error)
}

// Secret is a variable that an account keeps on the server for its sandboxes.
// A sandbox gets it only when its creation names it.
type Secret struct {
	AccountID string
	Name      string
	Sealed    []byte // the value, in the context SecretContext
	CreatedAt time.Time
	UpdatedAt time.Time
}

// AllSecrets in place of a name stands for every secret of the account.
const AllSecrets = "*"

// SecretContext binds the sealed value of a secret to its account and name.
func SecretContext(accountID, name string) []byte {
	return []byte("secret/" + accountID + "/" + name)
}

// SandboxContext binds what is sealed for a sandbox to it.
func SandboxContext(id string) []byte { return []byte("sandbox/" + id) }

// ValidateSecret checks the name and the value of a secret as those of a
// variable. A message never quotes the value.
func ValidateSecret(name, value string) error {
	return ValidateEnv(Env{name: value})
}

// ValidateSecretNames checks which secrets a sandbox is to get: names, or
// AllSecrets alone.
func ValidateSecretNames(names []string) error {
	if len(names) > MaxSecrets {
		return Errorf(CodeInvalidValue, "The list of secrets has %d names; at most %d are allowed.", len(names), MaxSecrets)
	}
	if slices.Contains(names, AllSecrets) {
		if len(names) > 1 {
			return Errorf(CodeInvalidValue, "The list of secrets has names beside %q, which stands for all of them.", AllSecrets)
		}
		return nil
	}
	for _, n := range names {
		if !validEnvName(n) {
			return Errorf(CodeInvalidValue, "There is no secret %q in this account.", shownName(n))
		}
	}
	return nil
}

// SecretStore keeps the secrets of accounts, sealed.
type SecretStore interface {
	// PutSecret adds a secret or replaces the value of the one of this name, of
	// which it returns the record: the time of creation stays. CodeInvalidValue
	// when it would be one more than MaxSecrets.
	PutSecret(ctx context.Context, s *Secret) (*Secret, error)
	// FindSecrets returns the secrets of an account by name.
	FindSecrets(ctx context.Context, accountID string) ([]*Secret, error)
	// DeleteSecret returns CodeSecretNotFound when there is none of this name.
	DeleteSecret(ctx context.Context, accountID, name string) error
	// Reseal passes everything sealed that the store holds, with its context, to
	// reseal and keeps what that returns. It returns how many values that were.
	// An error leaves the rest as it was.
	Reseal(ctx context.Context, reseal func(sealed, context []byte) ([]byte, error)) (int, error)
}

// SecretService manages the secrets of the caller's account. No call returns a
// value.
type SecretService interface {
	// PutSecret adds a secret or replaces its value. Sandboxes that have it keep
	// the value they got.
	PutSecret(ctx context.Context, name, value string) (*Secret, error)
	// ListSecrets returns the account's secrets by name.
	ListSecrets(ctx context.Context) ([]*Secret, error)
	// DeleteSecret removes one: CodeSecretNotFound when there is none.
	DeleteSecret(ctx context.Context, name string) error
	// RotateKeys replaces the server's key and seals everything anew. It is for
	// the administrator: CodeForbidden for others.
	RotateKeys(ctx context.Context) (Rotation, error)
}

// Rotation tells what a change of the server's key did.
type Rotation struct {
	Resealed int // values that were sealed anew
	Retired  int // keys that were dropped
}
