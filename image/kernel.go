package image

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxModules is what two digits can order.
const maxModules = 100

// extractKernel takes the downloaded kernel package apart and keeps the kernel
// and, in load order, the modules that the recipe asks for.
func (b *builder) extractKernel(ctx context.Context) error {
	debs, err := filepath.Glob(filepath.Join(b.dir, "kernel-deb", "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("the kernel package %s was not downloaded; check kernel.package in the recipe", b.recipe.Kernel.Package)
	}
	dir := filepath.Join(b.dir, "kernel")
	if err := b.run(ctx, command{args: []string{"dpkg-deb", "--extract", debs[0], dir}}); err != nil {
		return fmt.Errorf("the kernel package cannot be unpacked: %w", err)
	}
	kernels, _ := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if len(kernels) != 1 {
		return fmt.Errorf("the package %s holds %d kernels instead of one; check kernel.package in the recipe", filepath.Base(debs[0]), len(kernels))
	}
	release := strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-")
	if err := os.Rename(kernels[0], filepath.Join(b.image.Dir, kernelFile)); err != nil {
		return err
	}
	if err := os.Chmod(filepath.Join(b.image.Dir, kernelFile), 0o644); err != nil {
		return err
	}
	b.image.KernelRelease = release
	if name, version, ok := debVersion(filepath.Base(debs[0])); ok {
		b.installed("kernel", name, version)
	}
	root, err := findModules(dir, release)
	if err != nil {
		return err
	}
	l := &moduleLoader{files: root.files, builtin: root.builtin, read: func(path string) ([]byte, error) { return b.readModule(ctx, path) }}
	for _, name := range b.recipe.Kernel.Modules {
		if err := l.add(name); err != nil {
			return err
		}
	}
	if len(l.order) > maxModules {
		return fmt.Errorf("the kernel modules of the recipe need %d modules in all; the most is %d", len(l.order), maxModules)
	}
	for i, m := range l.order {
		name := fmt.Sprintf("%02d-%s.ko", i, m.name)
		if err := os.WriteFile(filepath.Join(b.image.Dir, modulesDir, name), m.data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// debVersion reads name and version from a file name that apt made.
func debVersion(file string) (name, version string, ok bool) {
	parts := strings.Split(file, "_")
	if len(parts) < 3 {
		return "", "", false
	}
	return parts[0], strings.ReplaceAll(parts[1], "%3a", ":"), true
}

// moduleTree is what a kernel package holds: the path of each module file and
// the modules that are part of the kernel itself, by normalized name.
type moduleTree struct {
	files   map[string]string
	builtin map[string]bool
}

func findModules(dir, release string) (*moduleTree, error) {
	root := filepath.Join(dir, "usr/lib/modules", release)
	if _, err := os.Stat(root); err != nil {
		root = filepath.Join(dir, "lib/modules", release)
	}
	t := &moduleTree{files: map[string]string{}, builtin: map[string]bool{}}
	list, err := os.ReadFile(filepath.Join(root, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("the kernel package holds no list of built-in modules: %w", err)
	}
	for line := range strings.Lines(string(list)) {
		t.builtin[moduleName(line)] = true
	}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.Contains(d.Name(), ".ko") {
			t.files[moduleName(path)] = path
		}
		return err
	})
	return t, err
}

// moduleName turns a module's path into the name the kernel knows it by.
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(strings.TrimSpace(path)), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// readModule returns a module's ELF file, decompressed.
func (b *builder) readModule(ctx context.Context, path string) ([]byte, error) {
	var tool string
	switch filepath.Ext(path) {
	case ".ko":
		return os.ReadFile(path)
	case ".xz":
		tool = "xz"
	case ".zst":
		tool = "zstd"
	case ".gz":
		tool = "gzip"
	default:
		return nil, fmt.Errorf("the kernel module %s is compressed in an unknown way", filepath.Base(path))
	}
	var out bytes.Buffer
	err := b.run(ctx, command{args: []string{tool, "-dc", path}, stdout: &out})
	return out.Bytes(), err
}

// moduleLoader puts modules into an order in which each finds the symbols it
// needs. Dependencies are read from the modules themselves.
type moduleLoader struct {
	files   map[string]string
	builtin map[string]bool
	read    func(path string) ([]byte, error)

	order []module
	state map[string]int // 1: being added, 2: in order
}

type module struct {
	name string
	data []byte
}

func (l *moduleLoader) add(name string) error {
	name = moduleName(name)
	if l.builtin[name] || l.state[name] == 2 {
		return nil
	}
	if l.state == nil {
		l.state = map[string]int{}
	}
	if l.state[name] == 1 {
		return fmt.Errorf("the kernel module %s depends on itself", name)
	}
	path, ok := l.files[name]
	if !ok {
		return fmt.Errorf("the kernel has no module %s; check kernel.modules in the recipe", name)
	}
	l.state[name] = 1
	data, err := l.read(path)
	if err != nil {
		return fmt.Errorf("the kernel module %s cannot be read: %w", name, err)
	}
	hard, soft, err := moduleNeeds(data)
	if err != nil {
		return fmt.Errorf("the kernel module %s cannot be understood: %w", name, err)
	}
	for _, dep := range soft { // may be an alias, or missing: a wish
		if _, ok := l.files[moduleName(dep)]; ok {
			hard = append(hard, dep)
		}
	}
	for _, dep := range hard {
		if err := l.add(dep); err != nil {
			return err
		}
	}
	l.state[name] = 2
	l.order = append(l.order, module{name, data})
	return nil
}

// moduleNeeds reads the names of the modules that must be loaded before one,
// from its .modinfo section: hard dependencies, and soft ones wanted before.
func moduleNeeds(data []byte) (hard, soft []string, err error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, nil, errors.New("it has no .modinfo section")
	}
	info, err := section.Data()
	if err != nil {
		return nil, nil, err
	}
	for _, entry := range strings.Split(string(info), "\x00") {
		key, value, _ := strings.Cut(entry, "=")
		switch key {
		case "depends":
			for dep := range strings.SplitSeq(value, ",") {
				if dep != "" {
					hard = append(hard, dep)
				}
			}
		case "softdep":
			before := false
			for _, word := range strings.Fields(value) {
				if strings.HasSuffix(word, ":") {
					before = word == "pre:"
				} else if before {
					soft = append(soft, word)
				}
			}
		}
	}
	return hard, soft, nil
}
