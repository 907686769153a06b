package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDefaultRecipe(t *testing.T) {
	r := DefaultRecipe()
	if r.Name != "default" || !r.TrustHostCA || len(r.Debian.Packages) == 0 {
		t.Errorf("unexpected default recipe: %+v", r)
	}
	path := filepath.Join(t.TempDir(), "recipe.yaml")
	if err := os.WriteFile(path, defaultRecipe, 0o644); err != nil {
		t.Fatal(err)
	}
	loaded, err := LoadRecipe(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, loaded); diff != "" {
		t.Errorf("a copy of the built-in file is another recipe:\n%s", diff)
	}
}

func TestRecipeRejects(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"unknown key", "name: default", "nmae: default", "nmae"},
		{"unknown nested key", "  suite: trixie", "  suit: trixie", "suit"},
		{"key given twice", "name: default", "name: default\nname: other", "name"},
		{"wrong type", "trust_host_ca: true", "trust_host_ca: [1]", "bool"},
		{"no name", "name: default", "name: ''", "name: \"\" is not"},
		{"name that is a path", "name: default", "name: ../default", "name:"},
		{"name that is an id", "name: default", "name: img_0123", "name:"},
		{"suite that is an option", "suite: trixie", "suite: --setup-hook=id", "debian.suite:"},
		{"package that is a list", "- bash\n", "- bash,evil\n", "debian.packages[1]:"},
		{"kernel that is an option", "package: linux-image-cloud-amd64", "package: -o", "kernel.package:"},
		{"module with a path", "- virtio_blk", "- ../virtio_blk", "kernel.modules[3]:"},
		{"module query", "version: v0.0.0-3.12.3-20240415-1", "version: latest", "python.version:"},
		{"short h1", "sum: h1:IX2O", "sum: h1:", "python.sum:"},
		{"h1 of another kind", "sum: h1:", "sum: h2:", "python.sum:"},
		{"npm range", "version: 22.23.5", "version: ^22.23.5", "node.version:"},
		{"npm tag", "version: 10.9.9", "version: latest", "npm.version:"},
		{"npm package that is a file", "package: npm\n", "package: ./npm\n", "npm.package:"},
		{"weak hash", "integrity: sha512-1g+6", "integrity: sha1-1g+6", "npm.integrity:"},
		{"cut hash", "integrity: sha512-3jhC", "integrity: sha512-", "node.integrity:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(string(defaultRecipe), c.old, c.new, 1)
			if text == string(defaultRecipe) {
				t.Fatalf("the default recipe has no %q", c.old)
			}
			_, err := ParseRecipe([]byte(text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one about %q", err, c.want)
			}
		})
	}
}

func TestLoadRecipeBounds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "big.yaml")
	if _, err := LoadRecipe(path); err == nil {
		t.Error("a missing file was read")
	}
	if err := os.WriteFile(path, make([]byte, maxRecipe+1), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadRecipe(path); err == nil || !strings.Contains(err.Error(), "1 MiB") {
		t.Errorf("error %v, want one about the size", err)
	}
}

func TestTrustHostCAByDefault(t *testing.T) {
	text := strings.Replace(string(defaultRecipe), "trust_host_ca: true", "", 1)
	r, err := ParseRecipe([]byte(text))
	if err != nil || !r.TrustHostCA {
		t.Errorf("TrustHostCA = false, %v; want true when left out", err)
	}
}

func FuzzParseRecipe(f *testing.F) {
	f.Add(defaultRecipe)
	f.Add([]byte("name: [&a [*a]]"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := ParseRecipe(b); err == nil && !namePattern.MatchString(r.Name) {
			t.Errorf("accepted the name %q", r.Name)
		}
	})
}
