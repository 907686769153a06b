package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest"
	"github.com/eqvps/eqvps/image"
	"github.com/eqvps/eqvps/vmm"
)

// A template's folder holds a frozen machine:
//
//	template.json  what it was made from
//	memory         the guest's memory, sparse
//	state          the device state
//	upper.ext4     the writable disk at that moment
//
// It appears under its key by one rename when it is whole. halfMade marks the
// folder until then.
const (
	templateFile = "template.json"
	memoryFile   = "memory"
	stateFile    = "state"
	initrdFile   = "initrd"
	halfMade     = ".making"
)

// defaultImage is the name under which a store holds the image that is used
// when a caller names none.
const defaultImage = "default"

// templateFormat changes when this code changes what a template holds or how
// its machine is made.
const templateFormat = 3

// warmUp is run before the freeze, so that what every run needs is in the
// guest's page cache, and thereby in the template's memory.
var warmUp = []string{
	"true",
	"python3 -c 'import json, os, re, socket, ssl, subprocess, tempfile, urllib.request'",
	"node -e 'require(\"fs\"); require(\"http\"); require(\"child_process\")'",
	"git --version >/dev/null && curl --version >/dev/null",
}

// Timeouts of a cold boot. Under software emulation on a busy host it takes a
// few seconds; the bound only ends what hangs.
const (
	bootTimeout    = 120 * time.Second
	prepareTimeout = 120 * time.Second
)

// templateKey is everything that decides a template's content. A restore works
// only with the monitor, processor model and devices it was frozen with.
type templateKey struct {
	Format    int      `json:"format"`
	Image     string   `json:"image"`
	Agent     string   `json:"agent"`
	Monitor   string   `json:"monitor"`
	Version   string   `json:"version"`
	Accel     string   `json:"accel"`
	CPUModel  string   `json:"cpu_model"`
	VCPUs     int      `json:"vcpus"`
	MemoryMiB int      `json:"memory_mib"`
	DiskMiB   int      `json:"disk_mib"`
	MTU       int      `json:"mtu"`
	WarmUp    []string `json:"warm_up"`
}

func (k templateKey) String() string {
	b, _ := json.Marshal(k) // nothing in it can fail to encode
	sum := sha256.Sum256(b)
	return "tpl_" + hex.EncodeToString(sum[:10])
}

// template is a loaded template. Its memory is a sealed memfd: every restored
// machine maps the same pages privately, and none can write them for others.
type template struct {
	key    templateKey
	build  string // tells it from any other of the same key
	dir    string
	image  *image.Image
	memory *os.File
	// proved is set once a machine restored from it has answered. One that never
	// did is taken for damaged when a restore fails.
	proved atomic.Bool
}

// commonKey is what all templates of this process have in common.
func (n *Node) commonKey() templateKey {
	return templateKey{
		Format: templateFormat, Agent: n.agentSum,
		Monitor: n.info.Monitor, Version: n.info.Version, Accel: n.info.Accel, CPUModel: n.info.CPUModel,
		MTU: n.net.MTU(), WarmUp: warmUp,
	}
}

func (n *Node) keyOf(img *image.Image, t eqvps.Tariff) templateKey {
	k := n.commonKey()
	k.Image, k.VCPUs, k.MemoryMiB, k.DiskMiB = img.Digest(), t.VCPUs(), t.MemoryMiB, t.DiskMiB
	return k
}

// Warm makes and loads the template of an image and a tariff if need be, so
// that the next start need not wait for it.
func (n *Node) Warm(ctx context.Context, imageRef string, tariff eqvps.Tariff) error {
	_, err := n.template(ctx, imageRef, tariff)
	return startError(err)
}

// spec is what a machine of a template, or booted like one, is made of.
func (n *Node) spec(p *placed, k templateKey, img *image.Image, upper string) vmm.Spec {
	return vmm.Spec{
		ID: p.record.Name, Dir: filepath.Join(p.dir, runDir), VCPUs: k.VCPUs, MemoryMiB: k.MemoryMiB,
		Disks: []vmm.Disk{
			{Path: img.RootFS(), Serial: guest.BaseDisk, ReadOnly: true},
			// The disk of an ephemeral machine does not outlive its host.
			{Path: upper, Serial: guest.UpperDisk, Volatile: p.record.Base == nil},
		},
		Network: &vmm.NIC{Namespace: p.slot.Namespace(), Tap: p.slot.Tap(), MAC: p.slot.GuestMAC()},
		OnSpawn: n.group(p.record.Name).add,
	}
}

// template returns a loaded template, making it first if need be. Callers that
// want the same one share the work; it goes on when one of them leaves, so
// that a client cannot undo another's wait.
func (n *Node) template(ctx context.Context, imageRef string, tariff eqvps.Tariff) (*template, error) {
	if imageRef == "" {
		imageRef = defaultImage
	}
	img, err := n.images.Get(imageRef)
	if err != nil {
		return nil, err
	}
	key := n.keyOf(img, tariff)
	if t := n.loaded(key); t != nil {
		return t, nil
	}
	ch := n.building.DoChan(key.String(), func() (any, error) {
		if t := n.loaded(key); t != nil {
			return t, nil
		}
		return n.openTemplate(context.WithoutCancel(ctx), key, img)
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-ch:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*template), nil
	}
}

func (n *Node) loaded(key templateKey) *template {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.templates[key.String()]
}

// openTemplate loads a template from disk, making it if it is not there.
func (n *Node) openTemplate(ctx context.Context, key templateKey, img *image.Image) (*template, error) {
	t := &template{key: key, dir: filepath.Join(n.dir, "templates", key.String()), image: img}
	if !t.intact() {
		began := time.Now()
		n.progress(fmt.Sprintf("making the template for %d MiB (once per image and tariff)", key.MemoryMiB))
		if err := n.makeTemplate(ctx, t); err != nil {
			return nil, fmt.Errorf("make template %s: %w", key, err)
		}
		n.log.Info("template made", "template", key.String(), "took", time.Since(began))
	}
	return n.load(t)
}

// load takes a template that lies on disk into memory.
func (n *Node) load(t *template) (*template, error) {
	err := n.do("template.load", func() (err error) {
		t.memory, err = vmm.SealMemory(filepath.Join(t.dir, memoryFile))
		return err
	})
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	name := filepath.Base(t.dir)
	if have := n.templates[name]; have != nil && have.build == t.build {
		return have, t.memory.Close() // loaded meanwhile for another reason
	}
	n.templates[name] = t
	return t, nil
}

// discard forgets a template and takes it out of the way, so that the next
// start makes it anew. Machines restored from it run on: they hold what they
// need, and for those that may be paused the files are kept.
func (n *Node) discard(t *template) error {
	n.mu.Lock()
	if n.templates[t.key.String()] == t {
		delete(n.templates, t.key.String())
	}
	n.mu.Unlock()
	// The memory is not closed: another start may be about to inherit it.
	return n.retire(t.dir)
}

// makeTemplate boots a machine, lets it warm up, freezes it and keeps what is
// needed to restore it. An error leaves nothing behind.
func (n *Node) makeTemplate(ctx context.Context, t *template) (err error) {
	select {
	case n.bootQueue <- struct{}{}:
		defer func() { <-n.bootQueue }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := n.checkDisk(); err != nil {
		return err
	}
	tmp := t.dir + halfMade
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return err
	}
	defer os.RemoveAll(tmp) // after the rename there is nothing to remove

	initrd := filepath.Join(tmp, initrdFile)
	if err := n.writeInitrd(initrd, t.image); err != nil {
		return err
	}
	upper := filepath.Join(tmp, upperFile)
	if err := n.do("template.disk", func() error { return makeUpperDisk(ctx, upper, t.key.DiskMiB) }); err != nil {
		return err
	}
	if err := n.freeze(ctx, t, tmp); err != nil {
		return err
	}
	if err := os.Remove(initrd); err != nil {
		return err
	}
	if err := t.writeManifest(tmp); err != nil {
		return err
	}
	err = n.do("template.publish", func() error {
		// A template that is there is taken as whole, also after a power cut.
		for _, f := range append(templateFiles, templateFile, ".") {
			if err := syncPath(filepath.Join(tmp, f)); err != nil {
				return err
			}
		}
		if err := n.retire(t.dir); err != nil {
			return err
		}
		if err := os.Rename(tmp, t.dir); err != nil {
			return err
		}
		return syncPath(filepath.Dir(t.dir))
	})
	if err == nil && !t.intact() {
		err = errors.New("the template is not whole")
	}
	return err
}

// freeze boots the template's machine and stops it when it is warm. The
// machine has a record like any other, so that a crash leaves nothing unknown.
func (n *Node) freeze(ctx context.Context, t *template, tmp string) (err error) {
	id := t.key.String()
	if err := n.Destroy(ctx, id); err != nil { // of a try that failed to clean up
		return err
	}
	defer func() { err = errors.Join(err, n.Destroy(context.WithoutCancel(ctx), id)) }()

	tariff := eqvps.Tariff{MilliCPU: t.key.VCPUs * 1000, MemoryMiB: t.key.MemoryMiB}
	p, err := n.place(ctx, &record{Name: id, Image: t.image.ID}, tariff)
	if err != nil {
		return err
	}
	spec := n.spec(p, t.key, t.image, filepath.Join(tmp, upperFile))
	spec.Kernel = t.image.Kernel()
	spec.Initrd = filepath.Join(tmp, initrdFile)
	spec.MemoryFile = filepath.Join(tmp, memoryFile)
	spec.Cmdline = t.key.cmdline()

	bootCtx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	var vm vmm.Machine
	err = n.do("template.boot", func() (err error) {
		vm, err = n.monitor.Boot(bootCtx, spec)
		return err
	})
	if err != nil {
		return err
	}
	defer vm.Close()
	client, err := guest.Connect(bootCtx, vm.DialGuest)
	if err != nil {
		return consoleError(ctx, vm, fmt.Errorf("the guest does not come up: %w", err))
	}
	defer client.Close()
	prepareCtx, cancel := context.WithTimeout(ctx, prepareTimeout)
	defer cancel()
	if err := client.Prepare(prepareCtx, vm.DialGuest, warmUp); err != nil {
		return consoleError(ctx, vm, fmt.Errorf("the guest cannot be prepared: %w", err))
	}
	return n.do("template.freeze", func() error {
		state, err := os.OpenFile(filepath.Join(tmp, stateFile), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return err
		}
		return errors.Join(vm.Snapshot(prepareCtx, state), state.Close())
	})
}

// cmdline is what the guest is told of its host.
func (k templateKey) cmdline() string { return fmt.Sprintf("eqvps.mtu=%d", k.MTU) }

func (n *Node) writeInitrd(path string, img *image.Image) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(img.WriteInitramfs(f, n.agent), f.Close())
}

// consoleError adds the end of what the guest printed: for the log only.
func consoleError(ctx context.Context, vm vmm.Machine, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	text, cerr := vm.Console(ctx)
	if cerr != nil || text == "" {
		return err
	}
	const most = 2000
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return fmt.Errorf("%w; the guest's console ends: %q", err, text)
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
