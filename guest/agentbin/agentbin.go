// Package agentbin carries the guest agent's program inside the server, so that
// one file is all there is to install. `make build` puts the program here
// before it builds the server.
package agentbin

import (
	"embed"
	"errors"
)

//go:embed all:*
var files embed.FS

// ErrMissing says that this build was made without its guest agent.
var ErrMissing = errors.New("this build has no guest agent inside; build it with `make build`")

// Agent returns the guest agent, a static Linux program.
func Agent() ([]byte, error) {
	b, err := files.ReadFile("eqvps-guest")
	if err != nil {
		return nil, ErrMissing
	}
	return b, nil
}
