package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// certificate is a pair of PEM files that is read again when it changes, so that
// renewing it needs no restart.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	changed time.Time // the newer file's time when current was read
}

// serveTLS returns a listener that speaks TLS over another one.
func serveTLS(l net.Listener, certFile, keyFile string, log *slog.Logger) (net.Listener, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	if err := c.read(); err != nil {
		return nil, fmt.Errorf("the certificate %s with the key %s cannot be used: %w", certFile, keyFile, err)
	}
	return tls.NewListener(l, &tls.Config{
		MinVersion: tls.VersionTLS12,
		// Streams and their deadlines are made for one request a connection.
		NextProtos:     []string{"http/1.1"},
		GetCertificate: c.get,
	}), nil
}

// get returns the certificate as the files are now. While they cannot be used,
// as when only one of them has been replaced yet, the last good one serves.
func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, err := c.modified(); err == nil && !at.Equal(c.changed) {
		if err := c.read(); err != nil {
			c.log.Warn("the changed certificate cannot be used; the old one serves on", "file", c.certFile, "err", err)
		} else {
			c.log.Info("the certificate was read again", "file", c.certFile)
		}
	}
	return c.current, nil
}

// read reads the files. The time is taken first, so that a change in between is
// seen the next time.
func (c *certificate) read() error {
	at, err := c.modified()
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return err
	}
	c.current, c.changed = &pair, at
	return nil
}

func (c *certificate) modified() (latest time.Time, err error) {
	for _, name := range []string{c.certFile, c.keyFile} {
		fi, err := os.Stat(name)
		if err != nil {
			return latest, err
		}
		if fi.ModTime().After(latest) {
			latest = fi.ModTime()
		}
	}
	return latest, nil
}
