package channel

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// How the host knocks.
const (
	synInterval = 15 * time.Millisecond
	padFirst    = 300 * time.Millisecond // padding is rarely needed, and long
	padInterval = time.Second
)

var padding [headerSize + MaxHello]byte

// Handshake is a session whose guest has answered and waits for GO.
type Handshake struct {
	Version int  // the guest's protocol version
	AtGate  bool // it waits for an identity

	conn *Conn
}

// Knock begins a session on nc and returns when the guest has answered. It
// owns nc and closes it on failure; it fails when ctx ends.
func Knock(ctx context.Context, nc net.Conn, version int) (*Handshake, error) {
	var b [8]byte
	rand.Read(b[:])
	in := &stallReader{nc: nc}
	c := &Conn{
		nc: nc, session: binary.BigEndian.Uint64(b[:]), in: in,
		br: bufio.NewReaderSize(in, headerSize+maxData),
	}
	c.out = newDataWriter(deadlineWriter{nc}, c.session)
	hs := &Handshake{conn: c}
	err := hs.during(ctx, func() error { return hs.knock(version) })
	if err != nil {
		return nil, err
	}
	return hs, nil
}

// during runs a step; when ctx ends, or the step fails, the channel is closed.
func (hs *Handshake) during(ctx context.Context, step func() error) error {
	stop := context.AfterFunc(ctx, func() { hs.conn.nc.Close() })
	err := step()
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		hs.conn.nc.Close()
		if ctx.Err() != nil {
			return fmt.Errorf("the guest did not answer: %w", context.Cause(ctx))
		}
	}
	return err
}

func (hs *Handshake) knock(version int) error {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { hs.repeatSYN(version, stop) })
	h, err := nextHeader(hs.conn.br, func(h header) bool {
		return h.session == hs.conn.session && h.kind == kindACK
	})
	close(stop)
	if err != nil {
		hs.conn.nc.Close()
		wg.Wait()
		return err
	}
	// A GO must not fall between the bytes of a SYN.
	wg.Wait()
	payload, err := hs.payload(h)
	if err != nil {
		return err
	}
	if len(payload) < 5 {
		return errProtocol
	}
	hs.Version = int(binary.BigEndian.Uint32(payload))
	hs.AtGate = payload[4] != 0
	return nil
}

// repeatSYN writes until told to stop: the first SYNs of a session are often
// swallowed by the one before.
func (hs *Handshake) repeatSYN(version int, stop <-chan struct{}) {
	syn := frame(kindSYN, hs.conn.session, binary.BigEndian.AppendUint32(nil, uint32(version)))
	tick := time.NewTicker(synInterval)
	defer tick.Stop()
	pad := time.Now().Add(padFirst)
	for {
		if now := time.Now(); now.After(pad) {
			pad = now.Add(padInterval)
			if _, err := hs.conn.nc.Write(padding[:]); err != nil {
				return
			}
		}
		if _, err := hs.conn.nc.Write(syn); err != nil {
			return
		}
		select {
		case <-tick.C:
		case <-stop:
			return
		}
	}
}

func (hs *Handshake) payload(h header) ([]byte, error) {
	hs.conn.in.owed = true
	b := make([]byte, h.length)
	_, err := io.ReadFull(hs.conn.br, b)
	return b, err
}

// Go sends the hello and returns the session's stream once the guest is ready.
// An error of the guest's own is a *GuestError. It fails when ctx ends.
func (hs *Handshake) Go(ctx context.Context, hello []byte) (*Conn, error) {
	if len(hello) > MaxHello {
		hs.Close()
		return nil, fmt.Errorf("a hello of %d bytes; at most %d are allowed", len(hello), MaxHello)
	}
	err := hs.during(ctx, func() error { return hs.goReady(hello) })
	if err != nil {
		return nil, err
	}
	return hs.conn, nil
}

func (hs *Handshake) goReady(hello []byte) error {
	c := hs.conn
	if _, err := c.nc.Write(frame(kindGO, c.session, hello)); err != nil {
		return err
	}
	for {
		c.in.owed = false
		b, err := c.br.Peek(headerSize)
		if err != nil {
			return err
		}
		h, ok := parseHeader(b)
		// Further answers to our SYNs may still arrive.
		if !ok || h.session != c.session || h.kind != kindACK && h.kind != kindReady {
			return errProtocol
		}
		if _, err := c.br.Discard(headerSize); err != nil {
			return err
		}
		payload, err := hs.payload(h)
		switch {
		case err != nil:
			return err
		case h.kind == kindReady && len(payload) > 0:
			return &GuestError{Text: string(payload)}
		case h.kind == kindReady:
			return nil
		}
	}
}

// Close gives the session up.
func (hs *Handshake) Close() { hs.conn.Close() }

// GuestError is what a guest said when it could not take its identity. The
// text is the guest's: it may say anything.
type GuestError struct{ Text string }

func (e *GuestError) Error() string { return fmt.Sprintf("the guest refused: %.200q", e.Text) }

// ErrHostGone is what a guest's port returns from Read when nobody is at its
// other end. The next Read waits until somebody is.
var ErrHostGone = errors.New("the host side of the port is closed")
