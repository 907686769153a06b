package image

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// block is the ext4 block size, in bytes; a page of the guest.
const block = 4096

// writeRootFS makes the disk from the tree. It is never written, so it has no
// journal, no reserved blocks and, after shrinking, hardly a free one. No
// checksums either: the manifest holds the hash of the whole, and the guest's
// processor has better things to do.
func (b *builder) writeRootFS(ctx context.Context) error {
	blocks, inodes, err := measure(b.tree)
	if err != nil {
		return fmt.Errorf("the tree cannot be measured: %w", err)
	}
	disk := filepath.Join(b.image.Dir, rootFSFile)
	uuid := b.uuid()
	// The time in the superblock does not depend on the clock.
	env := []string{"E2FSPROGS_FAKE_TIME=946684800"}
	err = b.run(ctx, command{env: env, args: []string{"mke2fs", "-q", "-F", "-t", "ext4",
		"-O", "none,extent,dir_index,dir_nlink,ext_attr,filetype,large_file,sparse_super,extra_isize",
		"-E", "hash_seed=" + uuid + ",root_owner=0:0,lazy_itable_init=0,nodiscard", "-U", uuid, "-L", "eqvps-base",
		"-m", "0", "-b", strconv.Itoa(block), "-I", "256", "-N", strconv.FormatInt(inodes+64, 10),
		"-d", b.tree, disk, strconv.FormatInt(blocks+blocks/8+8192, 10)}})
	if err == nil {
		err = b.run(ctx, command{env: env, args: []string{"resize2fs", "-M", disk}})
	}
	if err != nil {
		return fmt.Errorf("the disk cannot be made: %w", err)
	}
	return os.Chmod(disk, 0o444)
}

// uuid derives the file system's id from the image's.
func (b *builder) uuid() string {
	h := jsonHash(b.image.ID)
	return fmt.Sprintf("%s-%s-4%s-8%s-%s", h[:8], h[8:12], h[13:16], h[17:20], h[20:32])
}

// measure counts the blocks and inodes that a folder takes on ext4, a little
// too high.
func measure(dir string) (blocks, inodes int64, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		inodes++
		fi, err := d.Info()
		if err != nil {
			return err
		}
		if fi.Mode().IsRegular() || fi.IsDir() {
			blocks += (fi.Size() + block - 1) / block
		}
		return nil
	})
	return blocks + inodes/(block/256) + 1, inodes, err
}
