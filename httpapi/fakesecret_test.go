package httpapi_test

import (
	"context"
	"slices"

	"github.com/eqvps/eqvps"
)

func (f *fake) SetEnv(ctx context.Context, id string, c eqvps.EnvChange) (*eqvps.Sandbox, error) {
	if _, err := f.Use(ctx, id); err != nil {
		return nil, err
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.list, func(sb *eqvps.Sandbox) bool { return sb.ID == id })
	sb := *f.list[i]
	var err error
	sb.EnvKeys, err = c.Keys(sb.EnvKeys)
	f.list[i] = &sb
	return &sb, err
}

func (f *fake) PutSecret(_ context.Context, name, value string) (*eqvps.Secret, error) {
	if err := eqvps.ValidateSecret(name, value); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.values[name] = value
	return &eqvps.Secret{Name: name, CreatedAt: epoch, UpdatedAt: epoch, Sealed: []byte("sealed " + value)}, nil
}

func (f *fake) ListSecrets(context.Context) ([]*eqvps.Secret, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []*eqvps.Secret
	for _, name := range eqvps.EnvKeys(f.values) {
		list = append(list, &eqvps.Secret{Name: name, CreatedAt: epoch, UpdatedAt: epoch, Sealed: []byte("sealed " + f.values[name])})
	}
	return list, nil
}

func (f *fake) DeleteSecret(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.values[name]; !ok {
		return eqvps.Errorf(eqvps.CodeSecretNotFound, "There is no secret %.80q in this account.", name)
	}
	delete(f.values, name)
	return nil
}

func (f *fake) RotateKeys(context.Context) (eqvps.Rotation, error) {
	return eqvps.Rotation{Resealed: 2, Retired: 1}, nil
}
