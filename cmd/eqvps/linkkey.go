package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// linkKeyBytes is the length of the key that signs links.
const linkKeyBytes = 32

// linkKey reads the key that signs links, or makes it: links outlive a restart
// of the server. Whoever removes the file takes all links back at the next
// start.
func linkKey(path string) ([]byte, error) {
	key, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case len(key) != linkKeyBytes:
		return nil, fmt.Errorf("%s is not a key of %d bytes; remove it and start again, which ends all links", path, linkKeyBytes)
	default:
		return key, nil
	}
	key = make([]byte, linkKeyBytes)
	rand.Read(key) // never fails (crypto/rand, Go 1.24)
	tmp := path + ".new"
	if err := os.WriteFile(tmp, key, 0o600); err != nil {
		return nil, err
	}
	return key, os.Rename(tmp, path)
}
