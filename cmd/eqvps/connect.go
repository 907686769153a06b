package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/eqvps/eqvps/client"
)

// The variables by which clients find their server.
const (
	envBaseURL = "EQVPS_BASE_URL"
	envAPIKey  = "EQVPS_API_KEY"
)

// connect returns a client of the server that the environment names, else of
// the one on this machine.
func (a *app) connect() (*client.Client, error) {
	if base := os.Getenv(envBaseURL); base != "" {
		return connectTo(base)
	}
	return a.connectLocal()
}

func connectTo(base string) (*client.Client, error) {
	key := os.Getenv(envAPIKey)
	if key == "" {
		return nil, fmt.Errorf("%s names a server but %s is not set; put a token there, made with `eqvps token create NAME` on the server", envBaseURL, envAPIKey)
	}
	return client.New(base, key)
}

// errNoServer says that no server answers on the local socket.
type errNoServer struct{ data string }

func (e errNoServer) Error() string {
	return fmt.Sprintf("no server uses the data folder %s; start one with `eqvps serve`, or set %s and %s to use another", e.data, envBaseURL, envAPIKey)
}

// connectLocal returns a client of the server on this machine, or errNoServer.
func (a *app) connectLocal() (*client.Client, error) {
	socket, err := socketPath(a.data)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoServer{a.data}
	}
	var conn net.Conn
	if err == nil {
		conn, err = net.Dial("unix", socket)
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("the server on this machine may be used by root only; use sudo, or set %s and %s", envBaseURL, envAPIKey)
	case err != nil:
		return nil, errNoServer{a.data}
	}
	conn.Close()
	key := os.Getenv(envAPIKey)
	if key == "" {
		b, err := os.ReadFile(filepath.Join(a.data, adminTokenName))
		if err != nil {
			return nil, fmt.Errorf("the administrator's token cannot be read (%w); set %s", err, envAPIKey)
		}
		key = strings.TrimSpace(string(b))
	}
	return client.New("unix://"+socket, key)
}

// maxSocketPath is the longest path that a socket's address holds, in bytes.
const maxSocketPath = 107

// socketPath is the local server's socket. A path too long for an address
// leads through a descriptor of the folder, which stays open from then on.
func socketPath(data string) (string, error) {
	path := filepath.Join(data, socketName)
	if _, err := os.Stat(path); err != nil || len(path) <= maxSocketPath {
		return path, err
	}
	dir, err := os.Open(data)
	if err != nil {
		return "", err
	}
	openFolders = append(openFolders, dir)
	return shortPath(dir, path), nil
}

// openFolders keeps descriptors that paths lead through from being closed.
var openFolders []*os.File
