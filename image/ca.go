package image

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// authority is one certificate authority that the host's administrator added.
type authority struct {
	fingerprint string // sha256 of the certificate, hex
	pem         []byte
}

// extraCAs lists the authorities in the host's bundle that its distribution
// does not ship. The distribution's own stay out: the guest has its own, and
// an old host's may since have been withdrawn.
func (h host) extraCAs() ([]authority, error) {
	bundle, err := os.ReadFile(h.caBundle)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the host's certificates cannot be read; allow it, or set trust_host_ca to false: %w", err)
	}
	shipped := map[string]bool{}
	err = filepath.WalkDir(h.caDistro, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		for _, ca := range parseCAs(b) {
			shipped[ca.fingerprint] = true
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the host's certificates cannot be read; allow it, or set trust_host_ca to false: %w", err)
	}
	var extra []authority
	for _, ca := range parseCAs(bundle) {
		if !shipped[ca.fingerprint] {
			shipped[ca.fingerprint] = true
			extra = append(extra, ca)
		}
	}
	return extra, nil
}

// parseCAs reads the certificates of a PEM file and leaves out the rest.
func parseCAs(b []byte) []authority {
	var list []authority
	for {
		var block *pem.Block
		block, b = pem.Decode(b)
		if block == nil {
			return list
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			continue
		}
		sum := sha256.Sum256(block.Bytes)
		list = append(list, authority{
			fingerprint: hex.EncodeToString(sum[:]),
			pem:         pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes}),
		})
	}
}
