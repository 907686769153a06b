package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Where Python lives in the guest. With this prefix what pip installs lands in
// /usr/local/bin, which is on every PATH.
const (
	pythonBin = "usr/local/bin/python3.12"
	pythonLib = "usr/local/lib/python3.12"
)

// ensurepip replaces the part of the standard library that the Go module
// leaves out and that `python -m venv` needs.
//
//go:embed ensurepip.py
var ensurepip string

// embeddedFiles is the file list inside the Go module. Large files lie there
// compressed, under their name with .gz.
type embeddedFiles struct {
	Files []embeddedFile `json:"files"`
}

type embeddedFile struct {
	Name       string      `json:"name"`
	Size       int64       `json:"size"`
	Mode       fs.FileMode `json:"perm"`
	Symlink    string      `json:"symlink"`
	Compressed bool        `json:"compressed"`
}

func (b *builder) installPython(ctx context.Context) error {
	tree, err := os.OpenRoot(b.tree)
	if err != nil {
		return err
	}
	defer tree.Close()
	pkgs := path.Join(pythonLib, "site-packages")
	interpreter := filepath.Join(b.python, "python/internal/data/linux-amd64")
	if err := b.unpackEmbedded(tree, interpreter, "usr/local", func(name string) bool {
		// The module's launchers fork; those below do not. There is no compiler
		// to use the configuration with.
		return strings.HasPrefix(name, "bin/") && !strings.HasPrefix(name, "bin/python") ||
			strings.HasPrefix(name, "bin/python3.12-config") || strings.HasPrefix(name, "bin/python3-config") ||
			strings.HasSuffix(name, "/python.o") || strings.HasSuffix(name, "/EXTERNALLY-MANAGED")
	}); err != nil {
		return fmt.Errorf("Python cannot be unpacked: %w", err)
	}
	pip := filepath.Join(b.python, "pip/internal/data")
	if err := b.unpackEmbedded(tree, pip, pkgs, func(name string) bool {
		return strings.HasPrefix(name, "bin/") || strings.HasSuffix(name, ".exe")
	}); err != nil {
		return fmt.Errorf("pip cannot be unpacked: %w", err)
	}
	const launcher = "#!/usr/local/bin/python3.12\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n"
	for name, content := range map[string]string{
		"usr/local/bin/pip": launcher, "usr/local/bin/pip3": launcher, "usr/local/bin/pip3.12": launcher,
		pythonLib + "/ensurepip/__init__.py": ensurepip,
		pythonLib + "/ensurepip/__main__.py": "import ensurepip, sys\nsys.exit(ensurepip._main())\n",
	} {
		if err := writeInto(tree, name, []byte(content), 0o755); err != nil {
			return err
		}
	}
	// The base disk is read-only and shared: compile now, once.
	err = b.chroot(ctx, "/"+pythonBin, "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "timestamp", "/"+pythonLib)
	if err != nil {
		return fmt.Errorf("Python does not run in the guest: %w", err)
	}
	return nil
}

// unpackEmbedded writes the listed files of one folder of the Go module under
// prefix.
func (b *builder) unpackEmbedded(tree *os.Root, dir, prefix string, skip func(name string) bool) error {
	list, err := os.ReadFile(filepath.Join(dir, "files.json"))
	if err != nil {
		return err
	}
	var files embeddedFiles
	if err := json.Unmarshal(list, &files); err != nil {
		return err
	}
	for _, f := range files.Files {
		if !filepath.IsLocal(f.Name) {
			return fmt.Errorf("%q is no path inside the module", f.Name)
		}
		if skip(f.Name) || f.Mode.IsDir() {
			continue
		}
		to := path.Join(prefix, f.Name)
		if f.Symlink != "" {
			if err := symlinkInto(tree, f.Symlink, to); err != nil {
				return err
			}
			continue
		}
		data, err := f.read(dir)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		if bytes.HasPrefix(data, []byte(elf.ELFMAG)) {
			if data, err = stripELF(data); err != nil {
				return fmt.Errorf("%s: %w", f.Name, err)
			}
		}
		if err := writeInto(tree, to, data, f.Mode.Perm()&^0o022|0o600); err != nil {
			return err
		}
	}
	return nil
}

// read returns the file's content and checks its size.
func (f embeddedFile) read(dir string) ([]byte, error) {
	name := filepath.Join(dir, f.Name)
	if !f.Compressed {
		return os.ReadFile(name)
	}
	file, err := os.Open(name + ".gz")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	data := make([]byte, f.Size)
	if _, err := io.ReadFull(z, data); err != nil {
		return nil, err
	}
	return data, z.Close()
}

// writeInto writes one file of the guest, with its folders, replacing what is
// there.
func writeInto(tree *os.Root, name string, data []byte, perm fs.FileMode) error {
	if err := tree.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if err := tree.RemoveAll(name); err != nil {
		return err
	}
	if err := tree.WriteFile(name, data, perm); err != nil {
		return err
	}
	return tree.Chmod(name, perm)
}

func symlinkInto(tree *os.Root, target, name string) error {
	if err := tree.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if err := tree.RemoveAll(name); err != nil {
		return err
	}
	return tree.Symlink(target, name)
}
