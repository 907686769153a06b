package keyring

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/tink-crypto/tink-go/v2/insecurecleartextkeyset"
	"github.com/tink-crypto/tink-go/v2/keyset"
)

// file is what the key file holds. The sum tells a damaged key, which would
// otherwise be a valid one that opens nothing.
type file struct {
	SHA256 string          `json:"sha256"`
	Keyset json.RawMessage `json:"keyset"` // Tink's JSON form
}

// maxFile is far above the size of any ring.
const maxFile = 1 << 20

// read returns the keys of the file, nil when there is none.
func read(path string) (*keyset.Handle, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the key file %s cannot be read (%w); make it readable for this user, and for nobody else", path, errors.Unwrap(err))
	}
	defer f.Close()
	if err := private(path, f); err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, fmt.Errorf("the key file %s cannot be read: %w", path, err)
	}
	keys, err := parse(data)
	if err != nil {
		return nil, damaged(path, err)
	}
	return keys, nil
}

// private refuses a file that others can read: what it protects may be known
// to them.
func private(path string, f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("the key file %s is not a regular file; move it away, or restore it from a backup", path)
	}
	if m := st.Mode().Perm(); m&0o077 != 0 {
		return fmt.Errorf("the key file %s is open to others (mode %04o); run `chmod 600 %s`, and replace the key with `eqvps secret rotate-key` if somebody may have read it", path, m, path)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("the key file %s belongs to another user (uid %d); run `chown %d %s`, and replace the key with `eqvps secret rotate-key` if somebody may have read it", path, sys.Uid, os.Geteuid(), path)
	}
	return nil
}

func damaged(path string, err error) error {
	return fmt.Errorf("the key file %s is damaged (%w); restore it from a backup, or move it away: secrets that were sealed with it are lost then and have to be set again", path, err)
}

func parse(data []byte) (*keyset.Handle, error) {
	var f file
	// What a JSON decoder quotes of a damaged file may be a key.
	if json.Unmarshal(data, &f) != nil {
		return nil, errors.New("it is not the JSON that was written")
	}
	got, err := sum(f.Keyset)
	if err != nil || got != f.SHA256 {
		return nil, errors.New("its content does not match its checksum")
	}
	keys, err := insecurecleartextkeyset.Read(keyset.NewJSONReader(bytes.NewReader(f.Keyset)))
	if err != nil {
		return nil, errors.New("it holds no usable keys")
	}
	return keys, nil
}

// sum is a checksum of the keys, however their JSON is laid out.
func sum(keys json.RawMessage) (string, error) {
	var compact bytes.Buffer
	if err := json.Compact(&compact, keys); err != nil {
		return "", err
	}
	s := sha256.Sum256(compact.Bytes())
	return hex.EncodeToString(s[:]), nil
}

// write replaces the file: the new one is on the disk before it has the name.
func write(path string, keys *keyset.Handle) error {
	err := writeFile(path, keys)
	if err != nil {
		return fmt.Errorf("the key file %s cannot be written: %w", path, err)
	}
	return nil
}

func writeFile(path string, keys *keyset.Handle) (err error) {
	var set bytes.Buffer
	if err := insecurecleartextkeyset.Write(keys, keyset.NewJSONWriter(&set)); err != nil {
		return err
	}
	check, err := sum(set.Bytes())
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(file{SHA256: check, Keyset: set.Bytes()}, "", "  ")
	if err != nil {
		return err
	}
	// One that is there was left by a crash: it never had the name.
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
