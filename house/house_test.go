// Package house holds the rules of this repository that a machine can check.
package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/agentbin"
	"github.com/eqvps/eqvps/wire"
)

const (
	root   = ".."
	module = "github.com/eqvps/eqvps"
)

// pkg is what `go list` tells of a package.
type pkg struct {
	ImportPath string
	Dir        string
	Name       string
	Doc        string
	GoFiles    []string
	Imports    []string
}

// packages lists every package of the module.
func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Name,Doc,GoFiles,Imports", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 10 {
		t.Fatalf("only %d packages found", len(all))
	}
	return all
}

// short is a package's path in the module; "." is the root.
func short(path string) string {
	if path == module {
		return "."
	}
	return strings.TrimPrefix(path, module+"/")
}

func TestEveryPackageIsDocumented(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) == 0 {
			continue // tests only, such as this one
		}
		want := "Package " + p.Name + " "
		if p.Name == "main" {
			want = "Command "
		}
		if !strings.HasPrefix(p.Doc, want) {
			t.Errorf("%s: its comment does not begin with %q", short(p.ImportPath), want)
		}
	}
}

// layers says what of ours a package may import. What is below an entry has
// the entry's rights and may import its own parts; the longest entry counts.
var layers = map[string][]string{
	".":               {},
	"wire":            {"."},
	"client":          {".", "wire"},
	"httpapi":         {".", "wire"},
	"control":         {"."},
	"guest":           {"."},
	"image":           {"."},
	"keyring":         {"."},
	"network":         {"."},
	"sqlite":          {"."},
	"storetest":       {"."},
	"vmm":             {"."},
	"node":            {".", "vmm", "guest", "image", "network"},
	"cmd/eqvps-guest": {".", "guest"},
}

// joins may import everything: it is where the parts meet.
const joins = "cmd/eqvps"

func TestLayers(t *testing.T) {
	for _, p := range packages(t) {
		from := short(p.ImportPath)
		layer, ok := layerOf(from)
		if !ok {
			if from != joins && len(p.GoFiles) > 0 {
				t.Errorf("%s has no entry in layers: say what it may import", from)
			}
			continue
		}
		for _, imported := range p.Imports {
			if !strings.HasPrefix(imported, module) {
				continue
			}
			to := short(imported)
			target, known := layerOf(to)
			if !known || target != layer && !slices.Contains(layers[layer], target) {
				t.Errorf("%s imports %s; it may import %v", from, to, layers[layer])
			}
		}
	}
}

func layerOf(p string) (string, bool) {
	for q := p; ; {
		if _, ok := layers[q]; ok {
			return q, true
		}
		i := strings.LastIndexByte(q, '/')
		if i < 0 {
			return "", false
		}
		q = q[:i]
	}
}

// TestDomainHasNoDrivers: the root package knows the standard library only, and
// of that nothing that talks to the outside. net/netip holds values only.
func TestDomainHasNoDrivers(t *testing.T) {
	forbidden := regexp.MustCompile(`^(net|os|database|syscall)(/|$)`)
	for _, p := range packages(t) {
		if p.ImportPath != module {
			continue
		}
		for _, i := range p.Imports {
			if strings.Contains(i, ".") || forbidden.MatchString(i) && i != "net/netip" {
				t.Errorf("the domain imports %s", i)
			}
		}
	}
}

func TestGuestAgentIsEmbedded(t *testing.T) {
	b, err := agentbin.Agent()
	if err != nil {
		t.Fatal(err)
	}
	if len(b) < 1<<20 || string(b[:4]) != "\x7fELF" {
		t.Errorf("what is embedded as the guest agent is no Linux program (%d bytes)", len(b))
	}
}

// files calls f with every file that is committed or could be.
func files(t *testing.T, f func(path string, content []byte)) {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	names := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if len(names) < 50 {
		t.Fatalf("only %d files found", len(names))
	}
	for _, name := range names {
		b, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed, not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		f(name, b)
	}
}

// maxLines keeps a file to one idea.
const maxLines = 700

func TestFilesAreShort(t *testing.T) {
	files(t, func(path string, content []byte) {
		if n := strings.Count(string(content), "\n"); strings.HasSuffix(path, ".go") && n > maxLines {
			t.Errorf("%s has %d lines; split it below %d", path, n, maxLines)
		}
	})
}

// TestNoTestSkips: a test that skips is one that nobody misses. What a test
// needs is there, or its absence is a failure.
func TestNoTestSkips(t *testing.T) {
	files(t, func(path string, content []byte) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, content, 0)
		if err != nil {
			t.Error(err)
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, s.Sel.Name) {
				t.Errorf("%s calls %s", path, s.Sel.Name)
			}
			return true
		})
	})
}

// TestNoRegistryIsNamed: the clients decide where things come from.
func TestNoRegistryIsNamed(t *testing.T) {
	// Split, so that this file passes.
	hosts := []string{"deb." + "debian.org", "registry." + "npmjs", "pypi." + "org", "proxy." + "golang", "archive." + "ubuntu"}
	files(t, func(path string, content []byte) {
		for _, h := range hosts {
			if bytes.Contains(content, []byte(h)) {
				t.Errorf("%s names %s", path, h)
			}
		}
	})
}

// TestErrorsAreDocumented: whoever meets a code finds it in the docs, with the
// status that it has.
func TestErrorsAreDocumented(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "docs/rest-api.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range eqvps.ErrorTable {
		row := fmt.Sprintf("| %d | `%s` | %s | %s |\n", k.Status, k.Code, k.Message, k.Fix)
		if !strings.Contains(string(b), row) {
			t.Errorf("docs/rest-api.md lacks the row\n%s", row)
		}
	}
}

// TestLimitsAreDocumented: each limit that the service tells is in the docs, with
// the value that it has.
func TestLimitsAreDocumented(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "docs/rest-api.md"))
	if err != nil {
		t.Fatal(err)
	}
	limits := reflect.ValueOf(wire.NewTariffs(nil).Limits)
	for i := range limits.NumField() {
		row := fmt.Sprintf("| `%s` | %d |", limits.Type().Field(i).Tag.Get("json"), limits.Field(i).Int())
		if !strings.Contains(string(b), row) {
			t.Errorf("docs/rest-api.md lacks %s", row)
		}
	}
}
