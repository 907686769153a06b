package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/guest/agentbin"
	"github.com/eqvps/eqvps/image"
)

// checkTools looks for the programs that machines and image builds need.
func checkTools(context.Context, *app) []finding {
	var out []finding
	for _, t := range []struct {
		check string
		names []string
		miss  level
		why   string
	}{
		{"disk tools", []string{"mkfs.ext4"}, levelFail, "every machine's disk needs it"},
		{"image tools", []string{"mmdebstrap", "go", "npm", "mke2fs", "resize2fs", "dpkg-deb", "xz", "unshare"}, levelWarn, "only building an image needs them"},
	} {
		var missing []string
		for _, name := range t.names {
			if !installed(name) {
				missing = append(missing, name)
			}
		}
		f := okay(t.check, "%s", strings.Join(t.names, ", "))
		if len(missing) > 0 {
			f = okay(t.check, "missing: %s", strings.Join(missing, ", ")).at(t.miss, "`make deps` installs them on Debian; "+t.why)
		}
		out = append(out, f)
	}
	agent := okay("guest agent", "is in this program")
	if _, err := agentbin.Agent(); err != nil {
		agent = okay("guest agent", "%v", err).fail("no machine can start without it")
	}
	return append(out, agent)
}

// installed looks in the folders for administrators too, which are not on
// everybody's PATH.
func installed(name string) bool {
	if _, err := exec.LookPath(name); err == nil {
		return true
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

// Free space below which the data folder cannot take an image build, and
// machines.
const (
	lowSpace = 5 << 30
	noSpace  = 1 << 30
)

func checkData(_ context.Context, a *app) []finding {
	dir := a.data
	for { // the folder is made by the first server; its disk is there already
		if _, err := os.Stat(dir); err == nil || dir == "/" {
			break
		}
		dir = filepath.Dir(dir)
	}
	probe, err := os.CreateTemp(dir, ".eqvps-doctor-*")
	if err != nil {
		return []finding{okay("data folder", "%s: %v", a.data, errors.Unwrap(err)).fail("choose another with --data, or run with sudo")}
	}
	defer os.Remove(probe.Name())
	defer probe.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(probe.Fd()), &st); err != nil {
		return []finding{okay("data folder", "%s: %v", a.data, err).fail("choose another with --data")}
	}
	free := st.Bavail * uint64(st.Bsize)
	f := okay("data folder", "%s, %s free, disks are copied by %s", a.data, humanize.Bytes(free), copyMethod(probe))
	switch {
	case free < noSpace:
		f = f.fail("no machine starts with less than 1 GB free: make room or choose another with --data")
	case free < lowSpace:
		f = f.warn("make room: an image build needs 3 GB, and sandboxes write as well")
	}
	return []finding{f}
}

// copyMethod tells how the file system copies the disks of machines.
func copyMethod(f *os.File) string {
	if _, err := f.WriteString("x"); err != nil {
		return "what works"
	}
	clone, err := os.CreateTemp(filepath.Dir(f.Name()), ".eqvps-doctor-*")
	if err != nil {
		return "what works"
	}
	defer os.Remove(clone.Name())
	defer clone.Close()
	if unix.IoctlFileClone(int(clone.Fd()), int(f.Fd())) == nil {
		return "reference (reflink)"
	}
	return "their written parts (sparse copy)"
}

func checkImage(_ context.Context, a *app) []finding {
	store := image.Open(a.images)
	img, err := store.Get(image.DefaultRecipe().Name)
	switch {
	case errors.Is(err, image.ErrNotFound):
		return []finding{okay("image", "none in %s yet", a.images).warn("`eqvps image build` makes it, and so does the first `eqvps run`")}
	case err != nil:
		return []finding{okay("image", "%v", err).fail("make it again with `eqvps image rm default` and `eqvps image build`")}
	}
	began := time.Now()
	if err := store.Verify(img.ID); err != nil {
		return []finding{okay("image", "%v", err).fail("make it again with `eqvps image rm default` and `eqvps image build`")}
	}
	return []finding{okay("image", "%s, %s, kernel %s, every byte as built (%.1f s)", img.ID, humanize.Bytes(uint64(img.Size())), img.KernelRelease, time.Since(began).Seconds())}
}

// serverTimeout bounds the question whether a server is there.
const serverTimeout = 5 * time.Second

func checkServer(ctx context.Context, a *app) []finding {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	where := "on this machine"
	if base := os.Getenv(envBaseURL); base != "" {
		where = "at " + base
	}
	cl, err := a.connect()
	var none errNoServer
	switch {
	case errors.As(err, &none), errors.Is(err, fs.ErrPermission):
		return []finding{okay("server", "none runs %s; `eqvps run` needs none, `eqvps serve` starts one", where)}
	case err != nil:
		return []finding{okay("server", "%v", err).fail("clients cannot work")}
	}
	return []finding{askServer(ctx, cl, where)}
}

func askServer(ctx context.Context, cl *client.Client, where string) finding {
	who, err := cl.WhoAmI(ctx)
	if err != nil {
		return okay("server", "%s", sentence(err)).fail(fmt.Sprintf("clients of the server %s cannot work", where))
	}
	return okay("server", "version %s answers %s, as the token %q", who.Version, where, who.TokenName)
}
