package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps/guest"
)

// cgroupDir holds a cgroup per command.
const (
	cgroupRoot = "/sys/fs/cgroup"
	cgroupDir  = cgroupRoot + "/eqvps"
)

// diskWait is how long a disk may take to appear.
const diskWait = 5 * time.Second

// boot turns the initial file system into a running machine.
func boot() error {
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"mount", mountKernel},
		{"modules", loadModules},
		{"disks", mountRoot},
		{"system", mountSystem},
		{"limits", setLimits},
		{"cgroups", setupCgroups},
		{"network", setupNetwork},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

func mount(source, target, fstype string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}

const quietFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

func mountKernel() error {
	return errors.Join(
		mount("devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"),
		mount("proc", "/proc", "proc", quietFlags, ""),
		mount("sysfs", "/sys", "sysfs", quietFlags, ""),
	)
}

// loadModules loads /modules in order of name, and frees the memory they take
// in the initial file system.
func loadModules() error {
	files, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		_ = f.Close()
		_ = f.Close()
		if err != nil && err != unix.EEXIST {
			return fmt.Errorf("%s: %w", file, err)
		}
		_ = os.Remove(file)
	}
	return nil
}

// findDisk returns the device of the disk with a serial.
func findDisk(serial string) (string, error) {
	for deadline := time.Now().Add(diskWait); ; time.Sleep(5 * time.Millisecond) {
		files, _ := filepath.Glob("/sys/block/vd*/serial")
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err == nil && string(bytes.Trim(b, "\x00\n ")) == serial {
				return "/dev/" + filepath.Base(filepath.Dir(file)), nil
			}
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("there is no disk with the serial %q", serial)
		}
	}
}

// mountRoot joins the image's disk and the sandbox's own and makes them the
// root. Folders of the image can be renamed (redirect_dir); what would tie the
// sandbox's disk to this one mount (index, metacopy, xino) is off.
func mountRoot() error {
	base, err := findDisk(guest.BaseDisk)
	if err != nil {
		return err
	}
	upper, err := findDisk(guest.UpperDisk)
	if err != nil {
		return err
	}
	if err := mount(base, "/base", "ext4", unix.MS_RDONLY|unix.MS_NOATIME, ""); err != nil {
		return err
	}
	if err := mount(upper, "/upper", "ext4", unix.MS_NOATIME, "discard"); err != nil {
		return err
	}
	for _, dir := range []string{"/upper/upper", "/upper/work"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := mount("overlay", "/newroot", "overlay", unix.MS_NOATIME,
		"lowerdir=/base,upperdir=/upper/upper,workdir=/upper/work,index=off,metacopy=off,xino=off,redirect_dir=on"); err != nil {
		return err
	}
	for _, dir := range []string{"dev", "proc", "sys"} {
		if err := os.MkdirAll("/newroot/"+dir, 0o755); err != nil {
			return err
		}
		if err := mount("/"+dir, "/newroot/"+dir, "", unix.MS_MOVE, ""); err != nil {
			return err
		}
	}
	if err := os.Chdir("/newroot"); err != nil {
		return err
	}
	if err := mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return err
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return os.Chdir("/")
}

func mountSystem() error {
	shm := max(memTotal()/4, 256<<20)
	for _, m := range []struct {
		dir, fstype string
		flags       uintptr
		data        string
	}{
		{"/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "newinstance,mode=0620,ptmxmode=0666,gid=5"},
		{"/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777,size=" + strconv.FormatInt(shm, 10)},
		{"/dev/mqueue", "mqueue", quietFlags, ""},
		{"/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=0755,size=25%"},
		{"/sys/fs/cgroup", "cgroup2", quietFlags, ""},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := mount(m.fstype, m.dir, m.fstype, m.flags, m.data); err != nil && m.fstype != "mqueue" {
			return err
		}
	}
	_ = os.Remove("/dev/ptmx")
	for link, target := range map[string]string{
		"/dev/ptmx": "pts/ptmx", "/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2", "/dev/core": "/proc/kcore",
	} {
		if err := os.Symlink(target, link); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	for _, dir := range []string{"/tmp", "/var/tmp"} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/run/lock", "/root"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// sysctls are wishes: a kernel without one of them is no worse.
var sysctls = map[string]string{
	"kernel/printk":                       "3 4 1 7", // the console is for what breaks the machine
	"kernel/watchdog":                     "0",       // a machine that stood still is not hung
	"kernel/hung_task_timeout_secs":       "0",
	"net/ipv4/ping_group_range":           "0 2147483647",
	"net/ipv4/ip_unprivileged_port_start": "0",
	"fs/inotify/max_user_watches":         "524288",
	"fs/inotify/max_user_instances":       "1024",
}

func setLimits() error {
	for name, value := range sysctls {
		_ = os.WriteFile("/proc/sys/"+name, []byte(value), 0)
	}
	unix.Umask(0o022)
	// Through package unix this also is what commands get.
	files := unix.Rlimit{Cur: 65536, Max: 1 << 20}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return fmt.Errorf("open files: %w", err)
	}
	return nil
}

// setupCgroups prepares the parent of the commands' cgroups. It bounds their
// processes, all together, so that the agent can always start one more.
//
// It does not bound their memory: with a limit of their own, commands that use
// it up wear out their page cache against the limit for minutes before the
// kernel gives up (50 s and no end, measured in 512 MiB). Without one the
// machine's memory is the limit, the kernel's own guard against wear
// (min_ttl_ms) ends it within seconds, and the agent is never the victim.
func setupCgroups() error {
	if err := os.MkdirAll(cgroupDir, 0o755); err != nil {
		return err
	}
	_ = os.WriteFile("/sys/kernel/mm/lru_gen/min_ttl_ms", []byte("1000"), 0)
	pids := min(readInt("/proc/sys/kernel/pid_max"), readInt("/proc/sys/kernel/threads-max")) * 9 / 10
	for _, f := range []struct{ file, value string }{
		{"/sys/fs/cgroup/cgroup.subtree_control", "+memory +pids"},
		{cgroupDir + "/cgroup.subtree_control", "+memory +pids"},
		{cgroupDir + "/pids.max", strconv.FormatInt(max(pids, 64), 10)},
	} {
		if err := os.WriteFile(f.file, []byte(f.value), 0); err != nil {
			return err
		}
	}
	return nil
}

// memTotal is the machine's memory in bytes.
func memTotal() int64 {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return 0
	}
	return int64(si.Totalram) * int64(si.Unit)
}

func readInt(file string) int64 {
	b, _ := os.ReadFile(file)
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}
