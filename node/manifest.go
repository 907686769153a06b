package node

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
)

// templateFiles are what a restore reads.
var templateFiles = []string{memoryFile, stateFile, upperFile}

// manifest is a template's template.json: what it was made from, and how large
// its files are, which tells one that was cut short from a whole one.
type manifest struct {
	Key templateKey `json:"key"`
	// Build tells this template from any other of the same key.
	Build string           `json:"build"`
	Sizes map[string]int64 `json:"sizes"` // bytes, by file
}

// sizesOf are the sizes in bytes of files in a folder.
func sizesOf(dir string, names []string) (map[string]int64, error) {
	all := map[string]int64{}
	for _, name := range names {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		all[name] = fi.Size()
	}
	return all, nil
}

func (t *template) writeManifest(dir string) error {
	m := manifest{Key: t.key, Build: newBuild()}
	var err error
	if m.Sizes, err = sizesOf(dir, templateFiles); err != nil {
		return err
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, templateFile), b, 0o600)
}

func newBuild() string {
	b := make([]byte, 8)
	rand.Read(b) // never fails (crypto/rand, Go 1.24)
	return hex.EncodeToString(b)
}

func readManifest(dir string) (m manifest, err error) {
	b, err := os.ReadFile(filepath.Join(dir, templateFile))
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(b, &m)
}

// intact reports whether the template lies on disk as it was made, and which
// build it is. It looks at sizes only: what else can be wrong shows when the
// first restore fails.
func (t *template) intact() bool {
	m, err := readManifest(t.dir)
	if err != nil || !reflect.DeepEqual(m.Key, t.key) {
		return false
	}
	t.build = m.Build
	have, err := sizesOf(t.dir, templateFiles)
	return err == nil && reflect.DeepEqual(have, m.Sizes)
}

// sweepTemplates removes templates that were left half made, and those that no
// start will ask for again: made by another agent, monitor or image. Those that
// a persistent machine began as stay.
func (n *Node) sweepTemplates() error {
	images, err := n.images.List()
	if err != nil {
		return err
	}
	digests := map[string]bool{}
	for _, img := range images {
		digests[img.Digest()] = true
	}
	dirs, err := filepath.Glob(filepath.Join(n.dir, "templates", "*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		m, err := readManifest(dir)
		usable := err == nil && !strings.HasSuffix(dir, halfMade) && digests[m.Key.Image]
		if usable {
			now := n.commonKey()
			now.Image, now.VCPUs, now.MemoryMiB, now.DiskMiB = m.Key.Image, m.Key.VCPUs, m.Key.MemoryMiB, m.Key.DiskMiB
			usable = reflect.DeepEqual(now, m.Key)
		}
		needed := err == nil && m.Build != "" && !strings.HasSuffix(dir, halfMade) && n.named(m.Build)
		retired := filepath.Base(dir) != m.Key.String()
		if needed || usable && !retired {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}
