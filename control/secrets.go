package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/eqvps/eqvps"
)

// PutSecret adds a secret to the caller's account or replaces its value.
func (s *Service) PutSecret(ctx context.Context, name, value string) (*eqvps.Secret, error) {
	p, err := eqvps.PrincipalFrom(ctx)
	if err != nil {
		return nil, err
	}
	if err := eqvps.ValidateSecret(name, value); err != nil {
		return nil, err
	}
	defer s.sealing()()
	sealed, err := s.keys.Seal([]byte(value), eqvps.SecretContext(p.AccountID, name))
	if err != nil {
		return nil, err
	}
	now := s.now()
	return s.store.PutSecret(ctx, &eqvps.Secret{AccountID: p.AccountID, Name: name, Sealed: sealed, CreatedAt: now, UpdatedAt: now})
}

// ListSecrets returns the secrets of the caller's account by name.
func (s *Service) ListSecrets(ctx context.Context) ([]*eqvps.Secret, error) {
	p, err := eqvps.PrincipalFrom(ctx)
	if err != nil {
		return nil, err
	}
	return s.store.FindSecrets(ctx, p.AccountID)
}

// DeleteSecret removes a secret of the caller's account. Sandboxes that have it
// keep it.
func (s *Service) DeleteSecret(ctx context.Context, name string) error {
	p, err := eqvps.PrincipalFrom(ctx)
	if err != nil {
		return err
	}
	return s.store.DeleteSecret(ctx, p.AccountID, name)
}

// addSecrets gives a sandbox that is about to be created the secrets of its
// account that it asks for. Its own variables win.
func (s *Service) addSecrets(ctx context.Context, p eqvps.Principal, c *eqvps.CreateSandbox) error {
	if len(c.Secrets) == 0 {
		return nil
	}
	list, err := s.store.FindSecrets(ctx, p.AccountID)
	if err != nil {
		return err
	}
	env := eqvps.Env{}
	for _, sec := range list {
		if !slices.Contains(c.Secrets, sec.Name) && c.Secrets[0] != eqvps.AllSecrets {
			continue
		}
		value, err := s.keys.Open(sec.Sealed, eqvps.SecretContext(p.AccountID, sec.Name))
		if err != nil {
			return &eqvps.Error{
				Code: eqvps.CodeInvalidValue, Message: fmt.Sprintf("The secret %s cannot be read any more; set it again, or delete it.", sec.Name), Cause: err,
			}
		}
		env[sec.Name] = string(value)
	}
	for _, name := range c.Secrets {
		if _, ok := env[name]; !ok && name != eqvps.AllSecrets {
			return eqvps.Errorf(eqvps.CodeInvalidValue, "There is no secret %q in this account.", name)
		}
	}
	maps.Copy(env, c.Env)
	c.Env = env
	return eqvps.ValidateEnv(env)
}

// SetEnv changes the variables of a sandbox for the commands to come. The guest
// merges them, because nobody else has the values of an ephemeral one; the
// record has the names, and the sealed values of a persistent one.
func (s *Service) SetEnv(ctx context.Context, id string, c eqvps.EnvChange) (*eqvps.Sandbox, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	l, end, err := used{s, id}.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	// Two changes at once must come to the record as they came to the guest.
	l.env.Lock()
	defer l.env.Unlock()
	sb, err := s.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	if _, err := c.Keys(sb.EnvKeys); err != nil {
		return nil, err
	}
	if err := l.machine.SetEnv(ctx, c); err != nil {
		return nil, s.explain(ctx, l, err)
	}
	// The guest has it: a caller who leaves now does not undo that.
	defer s.sealing()()
	sb, err = s.store.UpdateSandbox(context.WithoutCancel(ctx), id, func(sb *eqvps.Sandbox) error { return s.recordEnv(sb, c) })
	if err != nil {
		return nil, err
	}
	s.refresh(sb)
	return sb, nil
}

// recordEnv makes a change of variables in a sandbox's record.
func (s *Service) recordEnv(sb *eqvps.Sandbox, c eqvps.EnvChange) error {
	keys, err := c.Keys(sb.EnvKeys)
	if err != nil {
		return err
	}
	if sb.Mode == eqvps.Persistent {
		kept, err := s.open(sb.ID, sb.Sealed)
		if err != nil {
			return err
		}
		if kept.Env, err = c.Apply(kept.Env); err != nil {
			return err
		}
		if sb.Sealed, err = s.seal(sb.ID, kept); err != nil {
			return err
		}
	}
	sb.EnvKeys = keys
	changed := append(eqvps.EnvKeys(c.Set), c.Remove...)
	sb.Note(s.now(), eqvps.EventEnvChanged, "", strings.Join(changed, " "))
	return nil
}

// sealing is called before something is sealed, and what it returns when that
// is in the store: a change of keys in between would drop the key that opens it.
func (s *Service) sealing() (done func()) {
	s.rotation.RLock()
	return s.rotation.RUnlock
}

// RotateKeys replaces the server's key and seals everything anew. It can be
// repeated: what a call that failed has left undone, the next one does. What no
// key opens stays as it is.
func (s *Service) RotateKeys(ctx context.Context) (eqvps.Rotation, error) {
	var done eqvps.Rotation
	p, err := eqvps.PrincipalFrom(ctx)
	if err != nil {
		return done, err
	}
	if !p.Admin {
		return done, eqvps.Errorf(eqvps.CodeForbidden, "Only the administrator may replace the server's key.")
	}
	// A caller who leaves does not stop it half way.
	ctx = context.WithoutCancel(ctx)
	s.rotation.Lock()
	defer s.rotation.Unlock()
	if err := s.keys.Rotate(); err != nil {
		return done, err
	}
	unreadable := 0
	done.Resealed, err = s.store.Reseal(ctx, func(sealed, context []byte) ([]byte, error) {
		plain, err := s.keys.Open(sealed, context)
		if err != nil {
			s.log.Error("nothing opens a sealed value", "of", string(context), "err", err)
			unreadable++
			return sealed, nil
		}
		return s.keys.Seal(plain, context)
	})
	done.Resealed -= unreadable
	if err != nil {
		return done, errors.Join(errors.New("the server has a new key, but not everything is sealed with it yet; the old ones stay"), err)
	}
	done.Retired, err = s.keys.Retire()
	s.log.Info("the server's key was replaced", "resealed", done.Resealed, "retired", done.Retired, "unreadable", unreadable)
	return done, err
}
