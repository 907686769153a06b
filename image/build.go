package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"time"

	"golang.org/x/sys/unix"
)

// builderVersion is part of every image's id. Raise it when the same recipe
// would give another image; the guest files count by themselves.
const builderVersion = 1

// BuildOptions change how an image is built, not what comes out.
type BuildOptions struct {
	Progress Progress // nil: silent
}

// Build makes the image that r describes and gives it r's name. If the store
// has it already, nothing is fetched or written but the name. Builders take
// turns. When ctx ends the running programs are stopped and what was made so
// far is removed.
func (s *Store) Build(ctx context.Context, r *Recipe, o BuildOptions) (*Image, error) {
	report := o.Progress
	if report == nil {
		report = func(Event) {}
	}
	if err := r.Validate(); err != nil {
		return nil, fmt.Errorf("the recipe is not usable: %w", err)
	}
	var cas []authority
	if r.TrustHostCA {
		var err error
		if cas, err = s.host.extraCAs(); err != nil {
			return nil, err
		}
	}
	id := imageID(r, cas)
	if target, err := os.Readlink(filepath.Join(s.dir, r.Name)); err == nil && target == id {
		if img, err := s.Get(id); err == nil {
			return img, nil
		}
	}
	unlock, err := s.lock(ctx, func() { report(Event{Name: "waiting for another build in " + s.dir}) })
	if err != nil {
		return nil, err
	}
	defer unlock()
	if img, err := s.Get(id); err == nil { // under another name, or built while we waited
		return img, s.link(r.Name, id)
	}
	if err := s.host.check(s.dir); err != nil {
		return nil, err
	}
	temp, err := os.MkdirTemp(s.dir, tempPrefix)
	if err != nil {
		return nil, fmt.Errorf("the build folder cannot be made: %w", err)
	}
	b := &builder{
		host: s.host, recipe: r, cas: cas, report: report, dir: temp,
		tree:  filepath.Join(temp, "tree"),
		image: &Image{ID: id, Name: r.Name, RecipeHash: recipeHash(r), Files: map[string]File{}, Dir: filepath.Join(temp, id)},
	}
	err = b.build(ctx)
	if err == nil {
		err = s.publish(b.image)
	}
	if discardErr := s.discard(temp); discardErr != nil {
		err = errors.Join(err, discardErr)
	}
	if err != nil {
		return nil, err
	}
	return s.Get(r.Name)
}

// publish brings a complete image to disk and moves it to its place, instead
// of a damaged one that may be there.
func (s *Store) publish(img *Image) error {
	final := filepath.Join(s.dir, img.ID)
	err := syncTree(img.Dir)
	if err == nil {
		err = os.Rename(img.Dir, final)
		if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
			if err = s.discard(final); err == nil {
				err = os.Rename(img.Dir, final)
			}
		}
	}
	if err == nil {
		err = syncDir(s.dir)
	}
	if err != nil {
		return fmt.Errorf("the image cannot be put into the store: %w", err)
	}
	return s.link(img.Name, img.ID)
}

// builder makes one image inside one temporary folder.
type builder struct {
	host   host
	recipe *Recipe
	cas    []authority
	report Progress
	dir    string // for everything temporary
	tree   string // the root file system while it grows
	image  *Image

	activity func(string) // of the step that runs
	python   string       // folder of the fetched Go module
	node     string       // fetched package files
	npm      string
}

func (b *builder) build(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Join(b.image.Dir, modulesDir), 0o755); err != nil {
		return fmt.Errorf("the build folder cannot be made: %w", err)
	}
	steps := []struct {
		name string
		run  func(context.Context) error
	}{
		{"fetching Python", b.fetchPython},
		{"fetching Node.js and npm", b.fetchNode},
		{"installing Debian", b.installDebian},
		{"taking the kernel apart", b.extractKernel},
		{"installing Python", b.installPython},
		{"installing Node.js and npm", b.installNode},
		{"configuring the guest", b.configure},
		{"writing the root file system", b.writeRootFS},
		{"sealing the image", b.seal},
	}
	for i, step := range steps {
		r := beginStep(b.report, Event{Step: i + 1, Steps: len(steps), Name: step.name})
		b.activity = r.detail
		err := ctx.Err()
		if err == nil {
			err = b.host.step(step.name)
		}
		if err == nil {
			err = step.run(ctx)
		}
		r.end(err == nil)
		if err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// run runs a program as part of the current step.
func (b *builder) run(ctx context.Context, c command) error {
	c.activity = b.activity
	if c.dir == "" {
		c.dir = b.dir
	}
	if os.Getenv("HOME") == "" { // go and npm refuse to work without
		c.env = append(c.env, "HOME="+b.dir)
	}
	return b.host.run(ctx, c)
}

// chroot runs a program of the guest inside the tree.
func (b *builder) chroot(ctx context.Context, args ...string) error {
	enter := []string{"chroot", b.tree, "/usr/bin/env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "LANG=C.UTF-8"}
	return b.run(ctx, command{args: append(enter, args...), proc: filepath.Join(b.tree, "proc")})
}

// seal records what every file is and writes the manifest.
func (b *builder) seal(context.Context) error {
	err := filepath.WalkDir(b.image.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(b.image.Dir, path)
		if err != nil {
			return err
		}
		b.activity(rel)
		b.image.Files[rel], err = hashFile(path)
		return err
	})
	if err != nil {
		return fmt.Errorf("the image's files cannot be read: %w", err)
	}
	sort.SliceStable(b.image.Packages, func(i, j int) bool {
		p, q := b.image.Packages[i], b.image.Packages[j]
		return p.Source < q.Source || p.Source == q.Source && p.Name < q.Name
	})
	b.image.HostCAs = len(b.cas)
	b.image.CreatedAt = time.Now().UTC().Truncate(time.Second)
	manifest, err := json.MarshalIndent(b.image, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.image.Dir, manifestFile), append(manifest, '\n'), 0o644)
}

func (b *builder) installed(source, name, version string) {
	b.image.Packages = append(b.image.Packages, Package{source, name, version})
}

// recipeHash is the hash of the recipe's content; comments and layout do not
// count.
func recipeHash(r *Recipe) string { return jsonHash(r) }

// imageID names the image by all that decides its content, the versions of
// Debian packages excepted.
func imageID(r *Recipe, cas []authority) string {
	prints := make([]string, len(cas))
	for i, ca := range cas {
		prints[i] = ca.fingerprint
	}
	sort.Strings(prints)
	return idPrefix + jsonHash(map[string]any{
		"builder": builderVersion,
		"recipe":  r,
		"guest":   guestFilesHash(),
		"cas":     prints,
	})[:idDigits]
}

func jsonHash(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("image: " + err.Error()) // plain data always encodes
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
