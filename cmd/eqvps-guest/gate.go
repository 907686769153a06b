package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/eqvps/eqvps/guest"
	"github.com/eqvps/eqvps/guest/agent"
)

// state is what the gate leaves to the process it becomes: in a memory file,
// never in arguments or variables, where any process could read it.
type state struct {
	Session uint64
	Env     []string
}

// gate waits for an identity, takes it, and becomes the serving agent.
func gate(port *port) error {
	ep := agent.NewGate(port, guest.Version)
	ep.Go = func(session uint64, hello []byte) error {
		id, err := parseIdentity(hello)
		if err != nil {
			return err
		}
		if err := id.apply(); err != nil {
			return err
		}
		fd, err := state{session, id.env}.file()
		if err != nil {
			return err
		}
		return port.become("serve", fd)
	}
	return ep.Run()
}

// file writes the state to a memory file.
func (s state) file() (int, error) {
	b, err := json.Marshal(s)
	if err != nil {
		return -1, err
	}
	fd, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err != nil {
			return -1, err
		}
		b = b[n:]
	}
	_, err = unix.Seek(fd, 0, io.SeekStart)
	return fd, err
}

// readState reads and closes the memory file.
func readState(arg string) (*state, error) {
	fd, err := strconv.Atoi(arg)
	if err != nil {
		return nil, fmt.Errorf("bad descriptor %q", arg)
	}
	f := os.NewFile(uintptr(fd), "state")
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	var s state
	return &s, json.Unmarshal(b, &s)
}
