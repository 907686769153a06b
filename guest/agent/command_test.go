package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "environment")
	if err := os.WriteFile(file, []byte("# comment\n\nPATH=/bin\n  A=b=c  \n=x\nnothing\nHOME=\nA=last"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := readEnvironment(file)
	want := map[string]string{"PATH": "/bin", "A": "last", "HOME": "", "USER": "root", "LANG": "C.UTF-8", "nothing": ""}
	for name, value := range want {
		if v := lookup(got, name); v != value {
			t.Errorf("%s is %q, want %q", name, v, value)
		}
	}
	seen := map[string]bool{}
	for _, kv := range got {
		if seen[kv] {
			t.Errorf("%s appears twice", kv)
		}
		seen[kv] = true
	}
	if diff := cmp.Diff(fallbackEnv, readEnvironment(file+".none")); diff != "" {
		t.Error(diff)
	}
}

func TestMergeEnv(t *testing.T) {
	base := []string{"A=1", "AB=2"}
	if diff := cmp.Diff([]string{"A=3", "AB=2", "B=4"}, mergeEnv(base, []string{"B=x", "A=3", "B=4"})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"A=1", "AB=2"}, base); diff != "" {
		t.Errorf("the base is changed: %s", diff)
	}
}

func TestVariables(t *testing.T) {
	got := variables([][]byte{[]byte("A=1"), []byte("none"), []byte("=x"), []byte("B="), nil})
	if diff := cmp.Diff([]string{"A=1", "B="}, got); diff != "" {
		t.Error(diff)
	}
}

func TestFindProgram(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"run": 0o755, "data": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := "/nowhere:" + dir
	for name, want := range map[string]any{
		"run": dir + "/run", "./x": "./x", "/abs": "/abs",
		"data": exitCannot, "folder": exitNotFound, "none": exitNotFound,
	} {
		got, err := findProgram(name, "/", path)
		if code, ok := want.(int); ok {
			if nr, _ := err.(*notRun); nr == nil || nr.code != code {
				t.Errorf("%s: %q, %v; want exit code %d", name, got, err, code)
			}
		} else if err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	if got, err := findProgram("run", dir, "relative::"); err != nil || got != dir+"/run" {
		t.Errorf("an empty part of PATH is the working folder: %q, %v", got, err)
	}
}
