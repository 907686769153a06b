// Command eqvps-guest is PID 1 of every sandbox: it is /init of the initial
// file system, makes the machine usable, and from then on serves the host.
//
// One binary plays three parts, one after another in the same process:
//
//	boot   mount, load modules, join the disks, configure the network; then serve
//	gate   wait in a template, and in each of its clones, for an identity
//	serve  run commands and move files
//
// A part replaces itself by the next with execve, so that nothing of one
// lives on in the other but the open port: see gate.go for the reason.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps/guest"
	"github.com/eqvps/eqvps/guest/agent"
)

// memoryLimit is where the agent's garbage collector starts to work hard.
const memoryLimit = 48 << 20

func main() {
	debug.SetMemoryLimit(memoryLimit)
	err := run(os.Args[1:])
	// There is nothing to return to: without its agent the machine is lost.
	fmt.Fprintln(os.Stderr, "eqvps-guest:", err)
	if os.Getpid() != 1 {
		os.Exit(1)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	select {}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "gate":
		port, err := inheritedPort(args[1])
		if err != nil {
			return err
		}
		return gate(port)
	case len(args) == 3 && args[0] == "serve":
		port, err := inheritedPort(args[1])
		if err != nil {
			return err
		}
		st, err := readState(args[2])
		if err != nil {
			return err
		}
		return serve(port, st)
	}
	if os.Getpid() != 1 {
		return errors.New("this program runs as the first process of a sandbox, and does nothing elsewhere")
	}
	if err := boot(); err != nil {
		return err
	}
	port, err := findPort()
	if err != nil {
		return err
	}
	return serve(port, nil)
}

// serve serves the host, and never returns but on failure. st is what the
// gate has left, nil after a boot.
func serve(port *port, st *state) error {
	score, err := unix.Open("/proc/self/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if _, err := unix.Write(score, []byte("-1000")); err != nil {
		return err
	}
	cfg := agent.Config{
		Version: guest.Version, CgroupDir: cgroupDir, Environment: agent.EnvironmentFile,
		OOMScore: score, SetClock: setClock, Shutdown: shutdown,
	}
	if st != nil {
		cfg.Env = st.Env
	}
	a, err := agent.New(cfg)
	if err != nil {
		return err
	}
	ep := a.NewEndpoint(port)
	ep.Go = func(_ uint64, hello []byte) error {
		if len(hello) == 0 {
			return nil
		}
		// A machine that was booted, not restored, has randomness of its own.
		id, err := parseIdentity(hello)
		if err != nil {
			return err
		}
		if err := id.apply(); err != nil {
			return err
		}
		a.SetEnv(id.env)
		return nil
	}
	ep.Ended = func() {
		if a.Frozen() {
			die(port.become("gate"))
		}
	}
	if st != nil {
		if err := ep.Resume(st.Session); err != nil {
			return err
		}
	}
	return ep.Run()
}

// die ends the machine from a place that cannot return an error.
func die(err error) {
	fmt.Fprintln(os.Stderr, "eqvps-guest:", err)
	shutdown()
}

func shutdown() {
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	select {}
}

func inheritedPort(arg string) (*port, error) {
	fd, err := strconv.Atoi(arg)
	if err != nil {
		return nil, fmt.Errorf("bad descriptor %q", arg)
	}
	return newPort(fd)
}
