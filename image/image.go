// Package image builds and keeps the guest images of EQVPS: a kernel, the
// modules its initramfs loads, and a read-only root file system.
//
// A Recipe says what goes in; every input that can be pinned is pinned by its
// hash. A Store is a folder of finished images, each in a folder named for the
// hash of everything that decided its content, so that building the same thing
// twice costs a look at a manifest. An image appears in the store by one rename
// once all of it is on disk, and is never changed afterwards; a name such as
// "default" is a symbolic link to one.
//
// Building needs root, mmdebstrap, the go and npm clients, and their
// registries. Using an image needs only the files.
package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

var (
	// ErrNotFound is wrapped when no image has the asked name or id.
	ErrNotFound = errors.New("image not found")
	// ErrDamaged is wrapped when a file of an image is missing or differs
	// from what was built.
	ErrDamaged = errors.New("image damaged")
)

// The files of an image, beside the modules folder.
const (
	kernelFile   = "kernel"
	rootFSFile   = "rootfs.ext4"
	modulesDir   = "modules"
	manifestFile = "manifest.json"
)

// Image is one finished image. Its fields are the content of manifest.json.
type Image struct {
	ID            string          `json:"id"`   // img_ and 20 hex digits: the hash of all that decided the content
	Name          string          `json:"name"` // the recipe's name, the reference it was built under
	RecipeHash    string          `json:"recipe_hash"`
	CreatedAt     time.Time       `json:"created_at"`
	KernelRelease string          `json:"kernel_release"` // as uname -r tells in the guest
	HostCAs       int             `json:"host_cas"`       // certificate authorities of the host that guests trust
	Packages      []Package       `json:"packages"`       // what was installed, sorted by source and name
	Files         map[string]File `json:"files"`          // by path inside Dir
	Dir           string          `json:"-"`              // the folder it lies in, absolute
}

// Package is one installed piece of software in the version that went in.
type Package struct {
	Source  string `json:"source"` // "debian", "kernel", "go" or "npm"
	Name    string `json:"name"`
	Version string `json:"version"`
}

// File is what one file of an image must be.
type File struct {
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

// Kernel returns the path of the kernel, a bzImage.
func (img *Image) Kernel() string { return filepath.Join(img.Dir, kernelFile) }

// RootFS returns the path of the root file system, a raw ext4 disk that is
// shared by all machines and never written.
func (img *Image) RootFS() string { return filepath.Join(img.Dir, rootFSFile) }

// Digest is the hash of the hashes of all files. The id names what was asked
// for, the digest what came out: Debian may have moved on between two builds of
// one id, so whatever is derived from an image's content is kept under its
// digest.
func (img *Image) Digest() string { return jsonHash(img.Files) }

// Size returns the bytes of all files of the image.
func (img *Image) Size() int64 {
	var n int64
	for _, f := range img.Files {
		n += f.Size
	}
	return n
}

// open reads the manifest in dir and looks at every file's size, not at its
// content.
func open(dir string) (*Image, error) {
	b, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err != nil {
		return nil, damaged(dir, manifestFile, "cannot be read")
	}
	img := &Image{Dir: dir}
	if err := json.Unmarshal(b, img); err != nil || img.ID != filepath.Base(dir) {
		return nil, damaged(dir, manifestFile, "does not describe this image")
	}
	for _, name := range []string{kernelFile, rootFSFile} {
		if _, ok := img.Files[name]; !ok {
			return nil, damaged(dir, manifestFile, "lists no "+name)
		}
	}
	for name, want := range img.Files {
		if !filepath.IsLocal(name) {
			return nil, damaged(dir, manifestFile, "lists a path outside the image")
		}
		fi, err := os.Lstat(filepath.Join(dir, name))
		switch {
		case err != nil:
			return nil, damaged(dir, name, "is missing")
		case !fi.Mode().IsRegular() || fi.Size() != want.Size:
			return nil, damaged(dir, name, fmt.Sprintf("has %d bytes instead of %d", fi.Size(), want.Size))
		}
	}
	return img, nil
}

func damaged(dir, file, what string) error {
	return fmt.Errorf("%w: %s of %s %s; build the image again", ErrDamaged, file, filepath.Base(dir), what)
}
