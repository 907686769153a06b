package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// A template that a machine began as is kept when its place is needed; another
// goes.
func TestRetire(t *testing.T) {
	n := &Node{dir: t.TempDir()}
	write := func(path string, v any) {
		t.Helper()
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		path = filepath.Join(n.dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("machines/sb_a/record.json", record{Name: "sb_a", Base: &base{Build: "runs"}})
	// Its record was not synced when the host lost power.
	write("machines/sb_b/paused/paused.json", pausedState{Base: base{Build: "paused"}})
	write("machines/sb_c/record.json", record{Name: "sb_c"})
	key := templateKey{}.String()
	place := filepath.Join(n.dir, "templates", key)
	for build, kept := range map[string]bool{"runs": true, "paused": true, "nobody's": false, "": false} {
		write("templates/"+key+"/template.json", manifest{Build: build})
		if err := n.retire(place); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(place); err == nil {
			t.Errorf("%q is still in its place", build)
		}
		if _, err := os.Stat(filepath.Join(n.dir, "templates", retiredName(key, build))); (err == nil) != kept {
			t.Errorf("%q: %v, should be kept: %v", build, err, kept)
		}
	}
}
