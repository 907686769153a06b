package image

import (
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
)

//go:embed default.yaml
var defaultRecipe []byte

// maxRecipe bounds a recipe file, in bytes.
const maxRecipe = 1 << 20

// Recipe says what goes into an image. default.yaml documents every field.
type Recipe struct {
	Name        string     `yaml:"name" json:"name"`
	Debian      Debian     `yaml:"debian" json:"debian"`
	Kernel      Kernel     `yaml:"kernel" json:"kernel"`
	Python      GoModule   `yaml:"python" json:"python"`
	Node        NPMPackage `yaml:"node" json:"node"`
	NPM         NPMPackage `yaml:"npm" json:"npm"`
	TrustHostCA bool       `yaml:"trust_host_ca" json:"trust_host_ca"`
}

// Debian is the base system.
type Debian struct {
	Suite    string   `yaml:"suite" json:"suite"`
	Packages []string `yaml:"packages" json:"packages"`
}

// Kernel is the guest's kernel and the modules its initramfs loads, in order.
type Kernel struct {
	Package string   `yaml:"package" json:"package"`
	Modules []string `yaml:"modules" json:"modules"`
}

// GoModule is an input fetched by the go client, pinned by its h1 sum.
type GoModule struct {
	Module  string `yaml:"module" json:"module"`
	Version string `yaml:"version" json:"version"`
	Sum     string `yaml:"sum" json:"sum"`
}

// NPMPackage is an input fetched by the npm client, pinned by its sha512.
type NPMPackage struct {
	Package   string `yaml:"package" json:"package"`
	Version   string `yaml:"version" json:"version"`
	Integrity string `yaml:"integrity" json:"integrity"`
}

// DefaultRecipe returns the recipe that is built in.
func DefaultRecipe() *Recipe {
	r, err := ParseRecipe(defaultRecipe)
	if err != nil {
		panic("image: the built-in recipe is broken: " + err.Error())
	}
	return r
}

// LoadRecipe reads a recipe file of at most 1 MiB.
func LoadRecipe(path string) (*Recipe, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("the recipe cannot be read: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRecipe+1))
	if err != nil {
		return nil, fmt.Errorf("the recipe cannot be read: %w", err)
	}
	if len(b) > maxRecipe {
		return nil, fmt.Errorf("the recipe %s is larger than 1 MiB", path)
	}
	r, err := ParseRecipe(b)
	if err != nil {
		return nil, fmt.Errorf("the recipe %s is not usable: %w", path, err)
	}
	return r, nil
}

// ParseRecipe reads a recipe and checks every field; unknown keys are errors.
func ParseRecipe(b []byte) (*Recipe, error) {
	r := Recipe{TrustHostCA: true}
	if err := yaml.UnmarshalWithOptions(b, &r, yaml.Strict()); err != nil {
		return nil, errors.New(strings.TrimSpace(yaml.FormatError(err, false, true)))
	}
	if err := r.Validate(); err != nil {
		return nil, err
	}
	return &r, nil
}

// The patterns keep every value an inert word: several become arguments of
// programs that run as root.
var (
	namePattern    = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	suitePattern   = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	debPattern     = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
	kmodPattern    = regexp.MustCompile(`^[a-z0-9][a-z0-9_]*$`)
	modulePattern  = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*(/[A-Za-z0-9._~-]+)*$`)
	versionPattern = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+-]*$`)
	npmPattern     = regexp.MustCompile(`^(@[a-z0-9][a-z0-9._-]*/)?[a-z0-9][a-z0-9._-]*$`)
	semverPattern  = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$`)
)

// Validate reports the first field that cannot be built from.
func (r *Recipe) Validate() error {
	match := func(field, value string, p *regexp.Regexp, want string) error {
		if p.MatchString(value) {
			return nil
		}
		return fmt.Errorf("%s: %q is not %s", field, value, want)
	}
	if n := len(r.Kernel.Modules); n > maxModules {
		return fmt.Errorf("kernel.modules: %d modules are too many; the most is %d", n, maxModules)
	}
	checks := []error{
		match("name", r.Name, namePattern, "a name of lower-case letters, digits and dashes"),
		match("debian.suite", r.Debian.Suite, suitePattern, "a Debian release name"),
		match("kernel.package", r.Kernel.Package, debPattern, "a Debian package name"),
		match("python.module", r.Python.Module, modulePattern, "a Go module path"),
		match("python.version", r.Python.Version, versionPattern, "an exact Go module version"),
		checkHash("python.sum", r.Python.Sum, "h1:", 32),
	}
	for i, p := range r.Debian.Packages {
		checks = append(checks, match(fmt.Sprintf("debian.packages[%d]", i), p, debPattern, "a Debian package name"))
	}
	for i, m := range r.Kernel.Modules {
		checks = append(checks, match(fmt.Sprintf("kernel.modules[%d]", i), m, kmodPattern, "a kernel module name written with underscores"))
	}
	for field, p := range map[string]NPMPackage{"node": r.Node, "npm": r.NPM} {
		checks = append(checks,
			match(field+".package", p.Package, npmPattern, "an npm package name"),
			match(field+".version", p.Version, semverPattern, "an exact version"),
			checkHash(field+".integrity", p.Integrity, "sha512-", 64))
	}
	for _, err := range checks {
		if err != nil {
			return err
		}
	}
	return nil
}

func checkHash(field, value, prefix string, size int) error {
	digest, ok := strings.CutPrefix(value, prefix)
	if b, err := base64.StdEncoding.DecodeString(digest); ok && err == nil && len(b) == size {
		return nil
	}
	return fmt.Errorf("%s: %q is not a hash of the form %s followed by %d bytes in base64", field, value, prefix, size)
}
