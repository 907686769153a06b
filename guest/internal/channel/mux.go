package channel

import (
	"io"
	"net"
	"time"

	"github.com/hashicorp/yamux"
)

// Window is the most bytes of one stream that are under way in one direction,
// and so what a slow reader costs in memory.
const Window = 512 << 10

// maxOpening bounds the streams that are being opened at once.
const maxOpening = 256

func muxConfig() *yamux.Config {
	return &yamux.Config{
		AcceptBacklog:          maxOpening,
		EnableKeepAlive:        false, // an idle guest must stay idle
		KeepAliveInterval:      time.Minute,
		ConnectionWriteTimeout: writeTimeout,
		MaxStreamWindowSize:    Window,
		StreamOpenTimeout:      stallTimeout,
		StreamCloseTimeout:     stallTimeout,
		LogOutput:              io.Discard, // a guest must not fill the host's log
	}
}

// MuxHost runs the host's side of the multiplexer on a session.
func MuxHost(c net.Conn) (*yamux.Session, error) { return yamux.Client(c, muxConfig()) }

// MuxGuest runs the guest's side of the multiplexer on a session.
func MuxGuest(c net.Conn) (*yamux.Session, error) { return yamux.Server(c, muxConfig()) }
