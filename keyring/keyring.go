// Package keyring is the server's key: an adapter of Tink that implements
// eqvps.Keyring.
//
// Each value is sealed with a data key of its own, and the data key with the
// newest key of the ring (envelope encryption, AES256-GCM both). The ring lies
// in one file, in clear, for its owner only: whoever has it and the database
// can read every secret. It is as much a part of a backup as the database is.
//
// # Crashes
//
// The file is replaced by a rename of a new one that is on the disk. A new key
// seals nothing before the file holds it, and an old one leaves the file only
// when Retire is called, so what was sealed with any key can be opened after a
// crash between any two steps.
package keyring

import (
	"fmt"
	"slices"
	"sync"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/eqvps/eqvps"
)

// Ring is an open key file. It is safe for concurrent use by one process,
// which must be the only one that uses the file.
type Ring struct {
	path string
	made bool // by this Open

	change sync.Mutex // one change of the file at a time
	keys   *keyset.Handle

	mu      sync.RWMutex
	current tink.AEAD
	former  []tink.AEAD // of before a change; a reader may hold what they have sealed
}

var _ eqvps.Keyring = (*Ring)(nil)

// Open reads the key file, or makes it with a first key when it is not there.
// The error is one sentence for people: the file can be read by others, is
// damaged, or cannot be written.
func Open(path string) (*Ring, error) {
	keys, err := read(path)
	if err != nil {
		return nil, err
	}
	made := keys == nil
	if made {
		if keys, err = keyset.NewHandle(aead.AES256GCMKeyTemplate()); err != nil {
			return nil, err
		}
		if err := write(path, keys); err != nil {
			return nil, err
		}
	}
	r := &Ring{path: path, made: made}
	if err := r.use(keys); err != nil {
		return nil, damaged(path, err)
	}
	return r, nil
}

// Made reports whether there was no key file, so that nothing that was sealed
// before can be opened.
func (r *Ring) Made() bool { return r.made }

// use makes keys those that the ring works with.
func (r *Ring) use(keys *keyset.Handle) error {
	ring, err := aead.New(keys)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current != nil {
		r.former = append(r.former, r.current)
	}
	r.current = aead.NewKMSEnvelopeAEAD2(aead.AES256GCMKeyTemplate(), ring)
	r.keys = keys
	return nil
}

// Seal encrypts plain in a context.
func (r *Ring) Seal(plain, context []byte) ([]byte, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.current.Encrypt(plain, context)
}

// Open decrypts what Seal returned, with any key that the ring has, or had
// since this process opened it.
func (r *Ring) Open(sealed, context []byte) ([]byte, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	plain, err := r.current.Decrypt(sealed, context)
	for _, k := range slices.Backward(r.former) {
		if err == nil {
			break
		}
		plain, err = k.Decrypt(sealed, context)
	}
	if err != nil {
		return nil, fmt.Errorf("no key in %s opens it, or it is damaged: %w", r.path, err)
	}
	return plain, nil
}

// Rotate adds a new key and seals with it from then on.
func (r *Ring) Rotate() error {
	return r.replace(func(m *keyset.Manager) error {
		id, err := m.Add(aead.AES256GCMKeyTemplate())
		if err != nil {
			return err
		}
		return m.SetPrimary(id)
	})
}

// Retire drops all keys but the newest from the file and returns how many that
// were. What they have sealed cannot be opened any more once this process ends.
func (r *Ring) Retire() (int, error) {
	dropped := 0
	err := r.replace(func(m *keyset.Manager) error {
		newest, err := r.keys.Primary()
		if err != nil {
			return err
		}
		for i := range r.keys.Len() {
			k, err := r.keys.Entry(i)
			if err != nil {
				return err
			}
			if k.KeyID() == newest.KeyID() {
				continue
			}
			if err := m.Delete(k.KeyID()); err != nil {
				return err
			}
			dropped++
		}
		return nil
	})
	return dropped, err
}

// replace writes a changed ring to the file and then works with it.
func (r *Ring) replace(change func(*keyset.Manager) error) error {
	r.change.Lock()
	defer r.change.Unlock()
	m := keyset.NewManagerFromHandle(r.keys)
	if err := change(m); err != nil {
		return err
	}
	keys, err := m.Handle()
	if err != nil {
		return err
	}
	if err := write(r.path, keys); err != nil {
		return err
	}
	return r.use(keys)
}
