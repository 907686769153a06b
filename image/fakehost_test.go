package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"debug/elf"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/mod/sumdb/dirhash"
)

// fakeHost stands in for the programs that a build runs: each leaves what the
// real one would, small.
type fakeHost struct {
	t      *testing.T
	recipe *Recipe
	module string            // folder of the Go module
	npm    map[string][]byte // package files by name@version

	mu      sync.Mutex
	ran     []string                                        // programs, in order
	steps   []string                                        // steps, in order
	onRun   func(ctx context.Context, program string) error // called first
	onStep  func(step string) error
	goError string
}

func newFakeHost(t *testing.T) *fakeHost {
	f := &fakeHost{t: t, recipe: DefaultRecipe(), module: t.TempDir(), npm: map[string][]byte{}}
	r := f.recipe
	r.TrustHostCA = false
	r.Kernel.Modules = []string{"virtio", "virtio_net", "ext4"}

	python := filepath.Join(f.module, "python/internal/data/linux-amd64")
	mustWrite(t, filepath.Join(python, "bin/python3.12.gz"), gzipped(fakeELF("")))
	mustWrite(t, filepath.Join(python, "lib/python3.12/os.py"), []byte("# os\n"))
	mustWrite(t, filepath.Join(python, "files.json"), mustJSON(embeddedFiles{Files: []embeddedFile{
		{Name: "bin", Mode: os.ModeDir | 0o755},
		{Name: "bin/python3.12", Size: int64(len(fakeELF(""))), Mode: 0o775, Compressed: true},
		{Name: "bin/python3", Mode: os.ModeSymlink, Symlink: "python3.12"},
		{Name: "lib/python3.12/os.py", Size: 5, Mode: 0o664},
	}}))
	pip := filepath.Join(f.module, "pip/internal/data")
	mustWrite(t, filepath.Join(pip, "pip/__init__.py"), nil)
	mustWrite(t, filepath.Join(pip, "files.json"), mustJSON(embeddedFiles{Files: []embeddedFile{{Name: "pip/__init__.py", Mode: 0o644}}}))
	sum, err := dirhash.HashDir(f.module, r.Python.Module+"@"+r.Python.Version, dirhash.Hash1)
	if err != nil {
		t.Fatal(err)
	}
	r.Python.Sum = sum

	r.Node.Integrity = f.addNPM(r.Node, map[string][]byte{"bin/node": fakeELF("")})
	r.NPM.Integrity = f.addNPM(r.NPM, map[string][]byte{"bin/npm-cli.js": nil, "bin/npx-cli.js": nil, "man/npm.1": nil})
	return f
}

func (f *fakeHost) addNPM(p NPMPackage, files map[string][]byte) (integrity string) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	a := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		data := files[name]
		a.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "package/" + name, Size: int64(len(data)), Mode: 0o644})
		a.Write(data)
	}
	a.Close()
	z.Close()
	f.npm[p.Package+"@"+p.Version] = out.Bytes()
	sum := sha512.Sum512(out.Bytes())
	return "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

// store returns a store in dir that builds on this host.
func (f *fakeHost) store(dir string) *Store {
	s := Open(dir)
	s.host = host{
		run:      f.run,
		lookPath: func(string) (string, error) { return "", nil },
		euid:     func() int { return 0 },
		free:     func(string) (uint64, error) { return 10 << 30, nil },
		step: func(name string) error {
			f.steps = append(f.steps, name)
			if f.onStep != nil {
				return f.onStep(name)
			}
			return nil
		},
		caBundle: filepath.Join(f.module, "no-bundle"),
		caDistro: filepath.Join(f.module, "no-folder"),
	}
	return s
}

func (f *fakeHost) run(ctx context.Context, c command) error {
	f.mu.Lock()
	f.ran = append(f.ran, c.args[0])
	f.mu.Unlock()
	env := func(key string) string {
		for _, kv := range c.env {
			if v, ok := strings.CutPrefix(kv, key+"="); ok {
				return v
			}
		}
		return ""
	}
	switch last := c.args[len(c.args)-1]; c.args[0] {
	case "go":
		fmt.Fprintf(c.stdout, `{"Dir": %q, "Error": %q}`, f.module, f.goError)
	case "npm":
		mustWrite(f.t, filepath.Join(last, "x.tgz"), f.npm[c.args[2]])
	case "mmdebstrap":
		mustWrite(f.t, filepath.Join(last, "var/lib/dpkg/status"), []byte("Package: bash\nStatus: install ok installed\nVersion: 5.2-1\n\nPackage: git\nVersion: 1:2.4\n"))
		mustWrite(f.t, filepath.Join(env("EQVPS_KERNEL_DIR"), "linux-image-6.1-test_6.1-1_amd64.deb"), nil)
	case "dpkg-deb":
		modules := filepath.Join(last, "usr/lib/modules/6.1-test")
		mustWrite(f.t, filepath.Join(last, "boot/vmlinuz-6.1-test"), []byte("kernel"))
		mustWrite(f.t, filepath.Join(modules, "modules.builtin"), []byte("kernel/fs/ext4/ext4.ko\n"))
		mustWrite(f.t, filepath.Join(modules, "kernel/net/virtio_net.ko"), fakeELF("depends=net-failover\x00"))
		mustWrite(f.t, filepath.Join(modules, "kernel/net/net-failover.ko"), fakeELF("depends=\x00"))
		mustWrite(f.t, filepath.Join(modules, "kernel/virtio.ko"), fakeELF("depends=\x00"))
	case "mke2fs":
		mustWrite(f.t, c.args[len(c.args)-2], []byte("disk"))
	}
	if f.onRun != nil { // after the work, so that a failure leaves something behind
		return f.onRun(ctx, c.args[0])
	}
	return nil
}

// fakeELF is a library of one section, .modinfo, outside what is mapped.
func fakeELF(modinfo string) []byte {
	const names = "\x00.modinfo\x00.shstrtab\x00"
	body := uint64(64)
	table := body + uint64(len(modinfo)+len(names))
	h := elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: 1,
		Shoff: table, Ehsize: 64, Phentsize: 56, Shentsize: 64, Shnum: 3, Shstrndx: 2,
	}
	var out bytes.Buffer
	binary.Write(&out, binary.LittleEndian, h)
	out.WriteString(modinfo + names)
	binary.Write(&out, binary.LittleEndian, []elf.Section64{{},
		{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: body, Size: uint64(len(modinfo))},
		{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: body + uint64(len(modinfo)), Size: uint64(len(names))}})
	return out.Bytes()
}

func mustWrite(t *testing.T, path string, data []byte) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func gzipped(b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	z.Write(b)
	z.Close()
	return out.Bytes()
}
