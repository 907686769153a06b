package image

import (
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"

	"github.com/cavaliergopher/cpio"
)

// initramfsDirs are the mount points and folders that the agent finds when it
// starts as /init. /dev/console comes with the kernel; the agent mounts devtmpfs
// for the rest.
var initramfsDirs = []string{"base", "dev", "modules", "newroot", "proc", "sys", "upper"}

// WriteInitramfs writes the initial file system with which machines of this
// image boot: agent as /init, the kernel modules as /modules/NN-name.ko, to be
// loaded in lexical order, and empty folders to mount on. The archive is an
// uncompressed cpio and the same for the same input.
func (img *Image) WriteInitramfs(w io.Writer, agent []byte) error {
	a := cpio.NewWriter(w)
	put := func(name string, mode cpio.FileMode, data []byte) error {
		err := a.WriteHeader(&cpio.Header{Name: name, Mode: mode, Links: 1, Size: int64(len(data))})
		if err == nil {
			_, err = a.Write(data)
		}
		if err != nil {
			return fmt.Errorf("the initramfs cannot be written: %w", err)
		}
		return nil
	}
	for _, dir := range initramfsDirs {
		if err := put(dir, cpio.TypeDir|0o755, nil); err != nil {
			return err
		}
	}
	if err := put("init", cpio.TypeReg|0o755, agent); err != nil {
		return err
	}
	for _, name := range img.modules() {
		data, err := os.ReadFile(filepath.Join(img.Dir, modulesDir, name))
		if err != nil {
			return damaged(img.Dir, path.Join(modulesDir, name), "cannot be read")
		}
		if err := put(path.Join("modules", name), cpio.TypeReg|0o644, data); err != nil {
			return err
		}
	}
	if err := a.Close(); err != nil {
		return fmt.Errorf("the initramfs cannot be written: %w", err)
	}
	return nil
}

// modules lists the module files in load order.
func (img *Image) modules() []string {
	var names []string
	for name := range img.Files {
		if file, ok := strings.CutPrefix(name, modulesDir+"/"); ok {
			names = append(names, file)
		}
	}
	sort.Strings(names)
	return names
}
