package guest

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Each protocol version has its dated line, in order, and the last one is
// Version.
func TestVersionHistory(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "version.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var doc string
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Doc != nil && strings.HasPrefix(g.Doc.Text(), "Version ") {
			doc = g.Doc.Text()
		}
	}
	line := regexp.MustCompile(`(?m)^\s*(\d+): \d{4}-\d{2}-\d{2}: \S`)
	n := 0
	for _, m := range line.FindAllStringSubmatch(doc, -1) {
		n++
		if m[1] != strconv.Itoa(n) {
			t.Errorf("line %d of the history is about version %s", n, m[1])
		}
	}
	if n != Version {
		t.Errorf("the history has %d lines, Version is %d", n, Version)
	}
}

// The agent lives on in every clone of a template, with whatever state Go's
// runtime keeps. That is harmless as long as none of it leaves the agent: see
// the package comment of guest/agent.
func TestAgentUsesNoRandomness(t *testing.T) {
	forbidden := map[string]bool{
		"math/rand": true, "math/rand/v2": true, "hash/maphash": true, "crypto/rand": true, "github.com/google/uuid": true,
	}
	for _, dir := range []string{"agent", "../cmd/eqvps-guest"} {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatal(dir, err)
		}
		for _, file := range files {
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, src, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, imp := range f.Imports {
				if path, _ := strconv.Unquote(imp.Path.Value); forbidden[path] {
					t.Errorf("%s imports %s", file, path)
				}
			}
			for _, call := range []string{"os.CreateTemp", "os.MkdirTemp"} {
				if strings.Contains(string(src), call) {
					t.Errorf("%s calls %s, whose names come from the runtime's randomness", file, call)
				}
			}
		}
	}
}

func writeJSON(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s", b)
	return err
}
