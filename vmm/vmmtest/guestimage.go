// Package vmmtest is the contract that every monitor of package vmm passes, and
// the small machine image that the contract boots.
package vmmtest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cavaliergopher/cpio"
)

// Image is what a test machine boots from.
type Image struct {
	Kernel string // path of the kernel
	Initrd string // path of an initramfs whose /init is the program testguest
}

// BuildImage makes a bootable test image in a temporary folder: the kernel and
// modules of the default image, with the program testguest as /init. It finds
// the default image in the folder that the environment variable EQVPS_IMAGES
// names, and fails the test when there is none: a monitor that no test booted
// is not tested.
func BuildImage(t testing.TB) Image {
	t.Helper()
	images := os.Getenv("EQVPS_IMAGES")
	kernel := filepath.Join(images, "default", "kernel")
	if _, err := os.Stat(kernel); images == "" || err != nil {
		t.Fatalf("no kernel at %s: run `make image` and set EQVPS_IMAGES to the folder that holds default/kernel", kernel)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "testguest")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", program,
		"github.com/eqvps/eqvps/vmm/vmmtest/testguest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build testguest: %v\n%s", err, out)
	}
	modules, err := filepath.Glob(filepath.Join(images, "default", "modules", "*.ko"))
	if err != nil {
		t.Fatal(err)
	}
	initrd := filepath.Join(dir, "initrd.cpio")
	if err := writeInitrd(initrd, program, modules); err != nil {
		t.Fatalf("write the test initramfs: %v", err)
	}
	return Image{Kernel: kernel, Initrd: initrd}
}

func writeInitrd(path, program string, modules []string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := cpio.NewWriter(f)
	for _, dir := range []string{"proc", "sys", "dev", "modules"} {
		if err := w.WriteHeader(&cpio.Header{Name: dir, Mode: cpio.TypeDir | 0o755, Links: 2}); err != nil {
			return err
		}
	}
	if err := addFile(w, "init", program); err != nil {
		return err
	}
	for _, module := range modules {
		if err := addFile(w, "modules/"+filepath.Base(module), module); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return f.Close()
}

func addFile(w *cpio.Writer, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&cpio.Header{Name: name, Mode: cpio.TypeReg | 0o755, Links: 1, Size: info.Size()}); err != nil {
		return err
	}
	if _, err := io.Copy(w, f); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
