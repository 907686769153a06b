package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/image"
)

// What a pause writes lies in a folder of its own in the machine's:
//
//	paused.json   what it takes to go on
//	memory        the pages that differ from the base's, encrypted
//	state         the device state, which holds registers: encrypted
//
// The name of the folder says what it is worth, and changes by one rename that
// is synced before anything follows from it:
//
//	paused.new    being written; worth nothing
//	paused        whole; the machine can be resumed from it, once
//	resuming      given to a machine that may have gone on; never used again
//
// The machine's disk (upper.ext4) stays where it is, in clear like that of a
// machine that runs, and goes with the memory: each is worth only what it was
// when the other was put away.
const (
	pausedFile = "paused.json"
	pausedDir  = "paused"
	pausedNew  = "paused.new"
	pausedUsed = "resuming"
)

// base is what a persistent machine began as, and by that what a monitor has to
// be like to go on with it.
type base struct {
	Key templateKey `json:"key"`
	// Build is the very template whose memory it was; another one of the same
	// key is another memory. "": the machine was booted, on zeroes.
	Build string `json:"build,omitempty"`
}

// pausedState is the content of paused.json.
type pausedState struct {
	Image string           `json:"image"`
	Base  base             `json:"base"`
	Sizes map[string]int64 `json:"sizes"` // bytes, by file
}

var sealedFiles = []string{kindMemory, kindState}

func (p *pausedState) write(dir string) error {
	var err error
	if p.Sizes, err = sizesOf(dir, sealedFiles); err != nil {
		return err
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	file := filepath.Join(dir, pausedFile)
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return err
	}
	return errors.Join(syncPath(file), syncPath(dir))
}

// readPaused reads what lies in a machine's folder. Absent: os.ErrNotExist.
func readPaused(machineDir string) (*pausedState, error) {
	dir := filepath.Join(machineDir, pausedDir)
	b, err := os.ReadFile(filepath.Join(dir, pausedFile))
	if err != nil {
		return nil, err
	}
	var p pausedState
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, fmt.Errorf("%s: %w", pausedFile, err)
	}
	return &p, nil
}

// Paused reports whether the machine lies paused and whole on this host.
func (n *Node) Paused(id string) bool {
	dir := resolve(n.machineDir(id))
	p, err := readPaused(dir)
	if err != nil {
		return false
	}
	have, err := sizesOf(filepath.Join(dir, pausedDir), sealedFiles)
	if err != nil {
		return false
	}
	for name, size := range p.Sizes {
		if have[name] != size {
			return false
		}
	}
	_, err = os.Stat(filepath.Join(dir, upperFile))
	return err == nil
}

// isPaused reports whether there is paused memory that no machine has got.
func isPaused(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, pausedDir))
	return err == nil
}

// moveDir renames a folder inside dir, for good.
func moveDir(dir, from, to string) error {
	if err := os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)); err != nil {
		return err
	}
	return syncPath(dir)
}

// dropDirs removes folders inside dir, for good.
func dropDirs(dir string, names ...string) error {
	for _, name := range names {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return syncPath(dir)
}

// fits refuses a base that this host's monitor cannot go on with.
func (n *Node) fits(b base) error {
	k := b.Key
	if k.Monitor == n.info.Monitor && k.Version == n.info.Version && k.Accel == n.info.Accel && k.CPUModel == n.info.CPUModel {
		return nil
	}
	return &eqvps.Error{
		Code:    eqvps.CodeStartFailed,
		Message: "The sandbox was paused under another virtual machine monitor or processor and cannot go on where it was; it can be started anew from its disk.",
		Cause: fmt.Errorf("paused under %s %s, %s, %s; this host has %s %s, %s, %s",
			k.Monitor, k.Version, k.Accel, k.CPUModel, n.info.Monitor, n.info.Version, n.info.Accel, n.info.CPUModel),
	}
}

// baseTemplate loads the template that a machine of an image began as; nil for
// one that was booted.
func (n *Node) baseTemplate(b base, img *image.Image) (*template, error) {
	if b.Build == "" {
		return nil, nil
	}
	n.mu.Lock()
	for _, t := range n.templates {
		if t.build == b.Build {
			n.mu.Unlock()
			return t, nil
		}
	}
	n.mu.Unlock()
	key := b.Key.String()
	for _, name := range []string{key, retiredName(key, b.Build)} {
		t := &template{key: b.Key, dir: filepath.Join(n.dir, "templates", name), image: img}
		if t.intact() && t.build == b.Build {
			v, err, _ := n.building.Do("base "+b.Build, func() (any, error) { return n.load(t) })
			if err != nil {
				return nil, err
			}
			return v.(*template), nil
		}
	}
	return nil, &eqvps.Error{
		Code:    eqvps.CodeStartFailed,
		Message: "The template that the sandbox began as is gone, and with it what was in its memory; it can be started anew from its disk.",
		Cause:   fmt.Errorf("there is no template %s, build %s", key, b.Build),
	}
}

// named reports whether a machine, running or paused, began as a build of a
// template: then the template is kept whatever becomes of it.
func (n *Node) named(build string) bool {
	ids, err := n.Records()
	if err != nil {
		return true // better one too many kept
	}
	for _, id := range ids {
		dir := resolve(n.machineDir(id))
		if r, _ := readRecord(dir); r != nil && r.Base != nil && r.Base.Build == build {
			return true
		}
		if p, _ := readPaused(dir); p != nil && p.Base.Build == build {
			return true
		}
	}
	return false
}

// retiredName is the folder of a template whose place another one takes.
func retiredName(key, build string) string { return key + "." + build }

// retire makes room at a template's place: what machines still need moves
// aside, else it goes.
func (n *Node) retire(dir string) error {
	if m, err := readManifest(dir); err == nil && m.Build != "" && n.named(m.Build) {
		err := os.Rename(dir, filepath.Join(filepath.Dir(dir), retiredName(m.Key.String(), m.Build)))
		if !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return os.RemoveAll(dir)
}
