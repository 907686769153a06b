package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A record is a slot's anchor: the file RunDir/slots/<index>.
type record struct {
	index   int
	Owner   string       `json:"owner"`
	Network netip.Prefix `json:"network"` // of the veth pair
	Created time.Time    `json:"created"`
}

// hostEnd and slotEnd are the addresses of the veth pair.
func (r record) hostEnd() string { return r.Network.Addr().Next().String() }
func (r record) slotEnd() string { return r.Network.Addr().Next().Next().String() }

// veth is the name of the pair's end on the host.
func (r record) veth() string { return vethPrefix + strconv.Itoa(r.index) }

func isSlotDevice(name string) bool {
	digits, ok := strings.CutPrefix(name, vethPrefix)
	_, err := strconv.ParseUint(digits, 10, 31)
	return ok && err == nil
}

func (m *Manager) slotsDir() string { return filepath.Join(m.cfg.RunDir, "slots") }

func (m *Manager) recordPath(index int) string {
	return filepath.Join(m.slotsDir(), strconv.Itoa(index))
}

// locked runs f while no other server of the host claims or releases slots.
func (m *Manager) locked(f func() error) error {
	if err := os.MkdirAll(m.slotsDir(), 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(m.cfg.RunDir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	for {
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err == nil {
			return f()
		} else if err != unix.EINTR {
			return fmt.Errorf("lock %s: %w", lock.Name(), err)
		}
	}
}

// records returns every slot claimed on the host, by index. A file that
// cannot be read still is a claim, of no known owner.
func (m *Manager) records() (map[int]record, error) {
	files, err := os.ReadDir(m.slotsDir())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := make(map[int]record, len(files))
	for _, f := range files {
		index, err := strconv.Atoi(f.Name())
		if err != nil {
			continue
		}
		if rec, err := m.record(index); !errors.Is(err, os.ErrNotExist) {
			all[index] = rec
		}
	}
	return all, nil
}

func (m *Manager) record(index int) (record, error) {
	rec := record{index: index}
	data, err := os.ReadFile(m.recordPath(index))
	if err != nil {
		return rec, err
	}
	err = json.Unmarshal(data, &rec)
	rec.index = index
	return rec, err
}

// claim records a free slot as ours. The caller holds the lock.
func (m *Manager) claim() (record, error) {
	used, err := m.records()
	if err != nil {
		return record{}, err
	}
	networks := 1 << (PrefixLen - m.cfg.Range.Bits())
	for index := range networks {
		if _, ok := used[index]; ok {
			continue
		}
		rec := record{index: index, Owner: m.cfg.Owner, Network: nthNetwork(m.cfg.Range, index), Created: time.Now().UTC()}
		if overlaps(used, rec.Network) {
			continue // of a server with another range
		}
		if _, err := os.Lstat(namespacePath(index)); err == nil {
			continue // not ours, whoever made it
		}
		return rec, m.write(rec)
	}
	return record{}, ErrFull
}

// write puts the record in place whole or not at all.
func (m *Manager) write(rec record) error {
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	return replaceFile(m.recordPath(rec.index), filepath.Join(m.cfg.RunDir, "new"), data)
}

// replaceFile writes by way of a scratch file, so that a crash leaves no half.
// The caller holds the lock.
func replaceFile(path, scratch string, data []byte) error {
	if err := os.WriteFile(scratch, data, 0o600); err != nil {
		return err
	}
	return os.Rename(scratch, path)
}

func overlaps(used map[int]record, p netip.Prefix) bool {
	for _, rec := range used {
		if rec.Network.IsValid() && rec.Network.Overlaps(p) {
			return true
		}
	}
	return false
}

// nthNetwork returns the nth /30 of a range.
func nthNetwork(r netip.Prefix, n int) netip.Prefix {
	b := r.Addr().As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(n) << (32 - PrefixLen)
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), PrefixLen)
}

// Reclaim removes every slot recorded for this owner that keep does not name
// and that this manager has not opened, so it is called when a server starts. It
// also removes the slots of owners that Config.OwnerGone knows to be gone. It
// goes on past failures and returns how many slots it removed.
func (m *Manager) Reclaim(ctx context.Context, keep func(index int) bool) (removed int, err error) {
	var all map[int]record
	err = m.locked(func() (err error) { // no slot is half claimed now
		all, err = m.records()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("network: read the slot records: %w", err)
	}
	var errs []error
	for _, index := range slices.Sorted(maps.Keys(all)) {
		rec := all[index]
		mine := rec.Owner == m.cfg.Owner
		if mine && (m.opened(index) || keep(index)) {
			continue
		}
		if !mine && (m.cfg.OwnerGone == nil || !m.cfg.OwnerGone(rec.Owner)) {
			continue
		}
		if err := ctx.Err(); err != nil {
			errs = append(errs, err)
			break
		}
		if err := m.tearDown(rec); err != nil {
			errs = append(errs, fmt.Errorf("network: remove slot %d: %w", index, err))
			continue
		}
		removed++
	}
	return removed, errors.Join(errs...)
}
