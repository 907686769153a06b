// Command eqvps-guest is PID 1 of every sandbox: it is /init of the initial
// file system, makes the machine usable, and from then on serves the host.
//
// It never exits: when it fails, the machine ends.
package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps/guest"
	"github.com/eqvps/eqvps/guest/agent"
)

// memoryLimit is where the agent's garbage collector starts to work hard.
const memoryLimit = 48 << 20

// lastWords is how long a machine that cannot boot stays, for its host to read
// why: with the monitor the console is gone.
const lastWords = time.Second

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "eqvps-guest: this program is the first process of a sandbox and does nothing elsewhere")
		os.Exit(2)
	}
	debug.SetMemoryLimit(memoryLimit)
	err := run()
	// Without its agent the machine is lost.
	fmt.Fprintln(os.Stderr, "eqvps-guest:", err)
	shutdown()
}

func run() error {
	if err := boot(); err != nil {
		fmt.Fprintln(os.Stderr, "eqvps-guest:", err)
		time.Sleep(lastWords)
		return err
	}
	id, err := openIdentity()
	if err != nil {
		return err
	}
	score, err := unix.Open("/proc/self/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if _, err := unix.Write(score, []byte("-1000")); err != nil {
		return err
	}
	port, err := openPort()
	if err != nil {
		return err
	}
	a, err := agent.New(agent.Config{
		Version: guest.Version, CgroupDir: cgroupDir, CgroupRoot: cgroupRoot, Environment: agent.EnvironmentFile,
		SpoolDir: "/var/tmp", OOMScore: score, Renew: id.renew, SetClock: setClock, Shutdown: shutdown,
	})
	if err != nil {
		return err
	}
	return a.Run(port)
}

// shutdown ends the machine: without a way to switch itself off, a restart is
// what ends its monitor.
func shutdown() {
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	select {}
}
