package agent

import (
	"bytes"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"
)

// Whatever is written, and however little room there is for it: what a stream
// still has is the end of what was written, in order, and a reader that
// follows it sees each byte once or is told that it is gone.
func TestStreamIsTheEndOfWhatWasWritten(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		s := &spool{dir: dir, fd: -1}
		room := rapid.SampledFrom([]uint32{0, 1, 3, spoolBlocks}).Draw(t, "room")
		s.size = spoolBlocks - room
		if rapid.Bool().Draw(t, "no folder") {
			s.dir = filepath.Join(dir, "absent")
		}
		evictions := rapid.IntRange(0, 2).Draw(t, "evictions")
		evict := func() bool {
			if evictions == 0 {
				return false
			}
			evictions--
			if s.fd >= 0 && room < spoolBlocks {
				s.release([]uint32{uint32(evictions)}) // another task's
			}
			return true
		}
		var st stream
		var whole []byte
		var at int64
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			n := rapid.SampledFrom([]int{1, 100, spoolBlock - 1, spoolBlock, 3*spoolBlock + 5}).Draw(t, "n")
			p := bytes.Repeat([]byte{byte(len(whole)), byte(len(whole) >> 8), 7}, n/3+1)[:n]
			whole = append(whole, p...)
			st.write(s, p, evict)
			if rapid.Bool().Draw(t, "read") {
				limit := rapid.SampledFrom([]int{0, 5, spoolBlock, 1 << 20}).Draw(t, "limit")
				c := st.read(s, at, limit)
				if c.Offset != max(at, st.Dropped) || len(c.Data) != min(limit, len(whole)-int(c.Offset)) || !bytes.Equal(c.Data, whole[c.Offset:int(c.Offset)+len(c.Data)]) {
					t.Fatalf("at %d, at most %d: %d bytes at %d of %+v", at, limit, len(c.Data), c.Offset, st.Retained)
				}
				at = c.Offset + int64(len(c.Data))
			}
			if st.Total != int64(len(whole)) || st.Dropped != st.Total-int64(len(st.blocks)*spoolBlock+len(st.tail)) || len(st.tail) >= spoolBlock || st.Total-st.Dropped < min(st.Total, spoolBlock/2) {
				t.Fatalf("%d bytes written: %+v, %d blocks, %d in memory", len(whole), st.Retained, len(st.blocks), len(st.tail))
			}
		}
	})
}

// A disk that breaks costs output, and the reader still gets to the end.
func TestBrokenSpool(t *testing.T) {
	s := &spool{dir: t.TempDir(), fd: -1}
	var st stream
	none := func() bool { return false }
	st.write(s, make([]byte, 4*spoolBlock+10), none)
	s.fd = 1 << 20 // no such descriptor
	if c := st.read(s, 0, 1<<20); c.Offset != 4*spoolBlock || len(c.Data) != 10 || st.Dropped != 4*spoolBlock {
		t.Errorf("%d bytes at %d of %+v", len(c.Data), c.Offset, st.Retained)
	}
	st.write(s, make([]byte, spoolBlock), none)
	if st.Total != 5*spoolBlock+10 || st.Dropped != 4*spoolBlock+spoolBlock/2 || len(st.tail) != spoolBlock/2+10 {
		t.Errorf("%+v, %d in memory", st.Retained, len(st.tail))
	}
}

// Room comes from the tasks that have been over for longest.
func TestEvictionOrder(t *testing.T) {
	ts := &tasks{spool: &spool{dir: t.TempDir(), fd: -1}}
	none := func() bool { return false }
	for i := range 3 {
		x := &task{id: string(rune('a' + i)), done: make(chan struct{}), retains: true}
		x.stdout.write(ts.spool, make([]byte, 2*spoolBlock), none)
		ts.list = append(ts.list, x)
	}
	ts.list[2].ended = ts.list[2].begun.Add(1)
	ts.list[0].ended = ts.list[0].begun.Add(2)
	close(ts.list[2].done)
	close(ts.list[0].done)
	for i, want := range [][3]int64{{0, 0, 2}, {2, 0, 2}, {2, 0, 2}} {
		if got := ts.evict(); got != (i < 2) {
			t.Errorf("eviction %d: %v", i, got)
		}
		for j, x := range ts.list {
			if x.stdout.Dropped != want[j]*spoolBlock {
				t.Errorf("after eviction %d task %s has lost %d bytes", i, x.id, x.stdout.Dropped)
			}
		}
	}
}
