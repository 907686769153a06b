package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// guestFiles lie in the guest as they lie in the folder rootfs.
//
//go:embed all:rootfs
var guestFiles embed.FS

// Where the guest keeps what the host's authorities need.
const (
	caFolder     = "usr/local/share/ca-certificates"
	extraCAFile  = "etc/eqvps/host-ca.crt"
	envFile      = "etc/eqvps/environment"
	systemBundle = "/etc/ssl/certs/ca-certificates.crt"
)

// configure writes the guest's own files, adds the host's authorities and
// clears away what the installation left.
func (b *builder) configure(ctx context.Context) error {
	tree, err := os.OpenRoot(b.tree)
	if err != nil {
		return err
	}
	defer tree.Close()
	for _, dir := range []string{"var/cache/apt", "var/log", "var/cache/debconf", "tmp", "run", "boot", "etc/profile.d"} {
		if err := emptyFolder(tree, dir); err != nil {
			return fmt.Errorf("/%s cannot be emptied: %w", dir, err)
		}
	}
	for _, dir := range []string{"proc", "sys", "dev", "run", "root", "var/cache/apt/archives/partial", "var/log/apt", "var/lib/apt/lists/partial"} {
		if err := tree.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := tree.MkdirAll("tmp", 0o777); err != nil {
		return err
	}
	if err := tree.Chmod("tmp", 0o777|fs.ModeSticky); err != nil {
		return err
	}
	if err := copyGuestFiles(tree); err != nil {
		return fmt.Errorf("the guest's files cannot be written: %w", err)
	}
	if err := symlinkInto(tree, "/usr/share/zoneinfo/Etc/UTC", "etc/localtime"); err != nil {
		return err
	}
	return b.addAuthorities(ctx, tree)
}

func copyGuestFiles(tree *os.Root) error {
	return fs.WalkDir(guestFiles, "rootfs", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := guestFiles.ReadFile(name)
		if err != nil {
			return err
		}
		return writeInto(tree, strings.TrimPrefix(name, "rootfs/"), data, 0o644)
	})
}

// guestFilesHash is the hash of the files that copyGuestFiles writes and of
// what else the builder carries into the guest.
func guestFilesHash() string {
	h := sha256.New()
	fmt.Fprintf(h, "%q", ensurepip)
	fs.WalkDir(guestFiles, "rootfs", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := guestFiles.ReadFile(name)
		fmt.Fprintf(h, "%q %q\n", name, data)
		return err
	})
	return hex.EncodeToString(h.Sum(nil))
}

// addAuthorities makes Debian, and through it pip, npm, git and curl, trust the
// host's extra authorities, and tells the programs that carry their own list.
func (b *builder) addAuthorities(ctx context.Context, tree *os.Root) error {
	if len(b.cas) == 0 {
		return nil
	}
	var all bytes.Buffer
	for _, ca := range b.cas {
		all.Write(ca.pem)
		if err := writeInto(tree, path.Join(caFolder, "host-"+ca.fingerprint[:16]+".crt"), ca.pem, 0o644); err != nil {
			return err
		}
	}
	if err := writeInto(tree, extraCAFile, all.Bytes(), 0o644); err != nil {
		return err
	}
	env, err := tree.ReadFile(envFile)
	if err != nil {
		return err
	}
	// Node.js reads the extra ones beside its own; Python programs read one file.
	env = fmt.Appendf(env, "NODE_EXTRA_CA_CERTS=/%s\nSSL_CERT_FILE=%s\nREQUESTS_CA_BUNDLE=%s\n", extraCAFile, systemBundle, systemBundle)
	if err := writeInto(tree, envFile, env, 0o644); err != nil {
		return err
	}
	if err := b.chroot(ctx, "/usr/sbin/update-ca-certificates"); err != nil {
		return fmt.Errorf("the host's certificates cannot be added: %w", err)
	}
	return nil
}

// emptyFolder removes what is in a folder of the guest, not the folder.
func emptyFolder(tree *os.Root, dir string) error {
	entries, err := fs.ReadDir(tree.FS(), dir)
	if err != nil {
		if os.IsNotExist(err) {
			return nil
		}
		return err
	}
	for _, e := range entries {
		if err := tree.RemoveAll(path.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
