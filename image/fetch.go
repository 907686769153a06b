package image

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/mod/sumdb/dirhash"
)

// fetchPython gets the Go module and checks every file of it against the
// recipe's sum, whatever the go client's own settings allow.
func (b *builder) fetchPython(ctx context.Context) error {
	m := b.recipe.Python
	name := m.Module + "@" + m.Version
	var out bytes.Buffer
	// Outside any module, and without a workspace or flags that would change
	// what is fetched.
	err := b.run(ctx, command{
		args:   []string{"go", "mod", "download", "-json", name},
		env:    []string{"GOFLAGS=-mod=mod", "GOWORK=off", "GO111MODULE=on", "GOTOOLCHAIN=local"},
		stdout: &out,
	})
	var got struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out.Bytes(), &got); jsonErr == nil && got.Error != "" {
		err = &commandError{program: "go", cause: errors.New("go mod download"), tail: []string{got.Error}}
	} else if err == nil {
		err = jsonErr
	}
	if err != nil {
		return fetchError(ctx, "the Go module "+name, "the go client's proxy (go env GOPROXY)", err)
	}
	sum, err := dirhash.HashDir(got.Dir, name, dirhash.Hash1)
	if err != nil {
		return fmt.Errorf("the Go module %s cannot be read: %w", name, err)
	}
	if sum != m.Sum {
		return hashMismatch(name, sum, m.Sum, "python.sum")
	}
	b.python = got.Dir
	b.installed("go", m.Module, m.Version)
	return nil
}

func (b *builder) fetchNode(ctx context.Context) (err error) {
	if b.node, err = b.fetchNPM(ctx, b.recipe.Node, "node.integrity"); err != nil {
		return err
	}
	b.npm, err = b.fetchNPM(ctx, b.recipe.NPM, "npm.integrity")
	return err
}

// fetchNPM gets an npm package as a file and returns its path.
func (b *builder) fetchNPM(ctx context.Context, p NPMPackage, field string) (string, error) {
	name := p.Package + "@" + p.Version
	dir, err := os.MkdirTemp(b.dir, "npm-")
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	err = b.run(ctx, command{
		args:   []string{"npm", "pack", name, "--json", "--ignore-scripts", "--loglevel=error", "--pack-destination", dir},
		stdout: &out,
	})
	if err != nil {
		return "", fetchError(ctx, "the npm package "+name, "the npm client's registry (npm config get registry)", err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(files) != 1 {
		return "", fmt.Errorf("npm pack left no package file for %s; update npm on this host", name)
	}
	f, err := os.Open(files[0])
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha512.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("%s cannot be read: %w", files[0], err)
	}
	if sum := "sha512-" + base64.StdEncoding.EncodeToString(h.Sum(nil)); sum != p.Integrity {
		return "", hashMismatch(name, sum, p.Integrity, field)
	}
	b.installed("npm", p.Package, p.Version)
	return files[0], nil
}

func hashMismatch(name, got, want, field string) error {
	return fmt.Errorf("%s has the hash %s but the recipe's %s says %s; find out why before you change the recipe", name, got, field, want)
}

// unreachable recognizes how apt, go and npm say that there is no network.
var unreachable = regexp.MustCompile(`(?i)dial tcp|no such host|i/o timeout|connection (refused|reset|timed out)|` +
	`network is unreachable|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|` +
	`Temporary failure resolving|Could not resolve|Could not connect|Unable to connect|TLS handshake|certificate`)

// fetchError says what to do about a client that could not fetch.
func fetchError(ctx context.Context, what, source string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if unreachable.MatchString(err.Error()) {
		return fmt.Errorf("%s cannot be fetched because %s cannot be reached; check this host's network and build again: %w", what, source, err)
	}
	return fmt.Errorf("%s cannot be fetched from %s; check the recipe: %w", what, source, err)
}
