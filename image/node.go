package image

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// maxNPMFile bounds one file of an npm package, in bytes.
const maxNPMFile = 512 << 20

// installNode puts Node.js and npm under /usr/local, so that global packages
// land in /usr/local/bin.
func (b *builder) installNode(ctx context.Context) error {
	tree, err := os.OpenRoot(b.tree)
	if err != nil {
		return err
	}
	defer tree.Close()
	found := false
	err = readNPM(b.node, func(name string, mode fs.FileMode, data []byte) error {
		switch name {
		case "bin/node":
			found = true
			if data, err = stripELF(data); err != nil {
				return err
			}
			return writeInto(tree, "usr/local/bin/node", data, 0o755)
		case "LICENSE":
			return writeInto(tree, "usr/share/doc/node/copyright", data, 0o644)
		}
		return nil
	})
	if err == nil && !found {
		err = errors.New("it holds no bin/node; check node.package in the recipe")
	}
	if err != nil {
		return fmt.Errorf("the package %s cannot be unpacked: %w", b.recipe.Node.Package, err)
	}
	err = readNPM(b.npm, func(name string, mode fs.FileMode, data []byte) error {
		if strings.HasPrefix(name, "man/") || strings.HasPrefix(name, "docs/") {
			return nil
		}
		return writeInto(tree, path.Join("usr/local/lib/node_modules/npm", name), data, mode)
	})
	if err != nil {
		return fmt.Errorf("the package %s cannot be unpacked: %w", b.recipe.NPM.Package, err)
	}
	for _, tool := range []string{"npm", "npx"} {
		if err := symlinkInto(tree, "../lib/node_modules/npm/bin/"+tool+"-cli.js", "usr/local/bin/"+tool); err != nil {
			return err
		}
		if err := tree.Chmod("usr/local/lib/node_modules/npm/bin/"+tool+"-cli.js", 0o755); err != nil {
			return fmt.Errorf("the package %s is no npm client: %w", b.recipe.NPM.Package, err)
		}
	}
	if err := b.chroot(ctx, "/usr/local/bin/npm", "--version"); err != nil {
		return fmt.Errorf("npm does not run in the guest: %w", err)
	}
	return nil
}

// readNPM calls each for every regular file of an npm package, named relative
// to the package.
func readNPM(file string, each func(name string, mode fs.FileMode, data []byte) error) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		_, name, ok := strings.Cut(h.Name, "/") // under "package/", or another single folder
		if h.Typeflag != tar.TypeReg || !ok || name == "" {
			continue
		}
		if !filepath.IsLocal(name) || h.Size > maxNPMFile {
			return fmt.Errorf("it holds a file that does not belong there: %q of %d bytes", h.Name, h.Size)
		}
		data := make([]byte, h.Size)
		if _, err := io.ReadFull(archive, data); err != nil {
			return err
		}
		if err := each(name, h.FileInfo().Mode().Perm()&0o755|0o644, data); err != nil {
			return err
		}
	}
}
