package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/eqvps/eqvps/vmm"
)

// A machine's folder is its record: it is made before anything else of the
// machine and removed after everything else. In it lie
//
//	record.json   what must be known to find the rest again
//	upper.ext4    the writable disk
//	run/          the monitor's own folder: sockets
//	paused/       what a pause has put away; see paused.go
const (
	recordFile = "record.json"
	upperFile  = "upper.ext4"
	runDir     = "run"
)

// A machine that was ready before its sandbox was asked for keeps the name it
// was started under; the sandbox's id is then a symbolic link to its folder. The
// link is what hands the machine over: at once or not at all.

// record is what a later process needs to adopt a machine or to free it.
type record struct {
	Name   string      `json:"name"` // of the machine: its folder, cgroup and monitor
	Image  string      `json:"image"`
	Slot   *slotRef    `json:"slot,omitempty"`   // its network slot
	Handle *vmm.Handle `json:"handle,omitempty"` // set once its monitor runs
	Base   *base       `json:"base,omitempty"`   // of a persistent machine: what it began as
	Claim  claim       `json:"claim"`            // what it was promised; nothing while it stands by
}

// slotRef names a network slot. The time of its claim tells it from a later one
// that was given the same index, which another machine may have.
type slotRef struct {
	Index   int       `json:"index"`
	Claimed time.Time `json:"claimed"`
}

// machineDir is the folder, or the link to it, of a machine or a sandbox.
func (n *Node) machineDir(id string) string { return filepath.Join(n.dir, "machines", id) }

// resolve follows the link of a sandbox's id to its machine's own folder.
func resolve(path string) string {
	if name, err := os.Readlink(path); err == nil {
		return filepath.Join(filepath.Dir(path), filepath.Base(name))
	}
	return path
}

// write replaces the record at once or not at all. It is not synced: after a
// power cut no machine runs that it could describe, and the folder itself
// still says what to free.
func (r *record) write(dir string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, recordFile+".new")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, recordFile))
}

// readRecord returns nil without an error where a folder holds no readable
// record: its maker died before the first one was written.
func readRecord(dir string) (*record, error) {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r record
	if json.Unmarshal(b, &r) != nil {
		return nil, nil
	}
	return &r, nil
}

// Records lists the machines for which something may exist, by the id of their
// sandbox where they have one.
func (n *Node) Records() ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(n.dir, "machines"))
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}
	linked := map[string]bool{}
	for _, e := range entries {
		if e.Type()&os.ModeSymlink != 0 {
			linked[filepath.Base(resolve(n.machineDir(e.Name())))] = true
		}
	}
	var ids []string
	for _, e := range entries {
		if !linked[e.Name()] {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}
