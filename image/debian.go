package image

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// leftOut are paths that no package may install: nobody reads manuals in a
// sandbox, and the locale is C.UTF-8.
var leftOut = []string{
	"path-exclude=/usr/share/doc/*", "path-include=/usr/share/doc/*/copyright",
	"path-exclude=/usr/share/man/*", "path-exclude=/usr/share/info/*",
	"path-exclude=/usr/share/locale/*", "path-exclude=/usr/share/lintian/*",
	"path-exclude=/usr/share/bash-completion/*", "path-exclude=/usr/share/gitweb/*",
}

// kernelHook runs beside mmdebstrap while the package lists are there. It
// downloads the kernel package, following a package that only depends on one.
const kernelHook = `set -eu
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
cd "$EQVPS_KERNEL_DIR"
real=$(apt-cache depends --no-recommends --no-suggests "$EQVPS_KERNEL" | sed -n 's/^ *Depends: *\(linux-image-[^ ]*\)$/\1/p' | head -n 1)
apt-get download "${real:-$EQVPS_KERNEL}"`

func (b *builder) installDebian(ctx context.Context) error {
	debs := filepath.Join(b.dir, "kernel-deb")
	if err := os.Mkdir(debs, 0o755); err != nil {
		return err
	}
	d := b.recipe.Debian
	args := []string{"mmdebstrap", "--mode=root", "--format=directory", "--variant=essential", "--verbose",
		"--components=main", "--aptopt=Acquire::Languages \"none\"", "--aptopt=APT::Install-Recommends \"false\"",
		"--customize-hook=" + kernelHook}
	if len(d.Packages) > 0 {
		args = append(args, "--include="+strings.Join(d.Packages, ","))
	}
	for _, opt := range leftOut {
		args = append(args, "--dpkgopt="+opt)
	}
	args = append(args, d.Suite, b.tree)
	err := b.run(ctx, command{args: args, env: []string{
		"TMPDIR=" + b.dir, "EQVPS_KERNEL=" + b.recipe.Kernel.Package, "EQVPS_KERNEL_DIR=" + debs}})
	if err != nil {
		return fetchError(ctx, "Debian "+d.Suite, "mmdebstrap's mirror", err)
	}
	return b.recordDebian()
}

// recordDebian reads the installed versions from dpkg's database.
func (b *builder) recordDebian() error {
	f, err := os.Open(filepath.Join(b.tree, "var/lib/dpkg/status"))
	if err != nil {
		return fmt.Errorf("mmdebstrap left no list of packages: %w", err)
	}
	defer f.Close()
	var name string
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), "Package: "); ok {
			name = v
		}
		if v, ok := strings.CutPrefix(lines.Text(), "Version: "); ok {
			b.installed("debian", name, v)
		}
	}
	return lines.Err()
}
