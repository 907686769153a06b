package fake_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/eqvps/eqvps/vmm"
	"github.com/eqvps/eqvps/vmm/fake"
	"github.com/eqvps/eqvps/vmm/vmmtest"
)

func TestContract(t *testing.T) {
	host := fake.New(program)
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	vmmtest.Run(t, vmmtest.Factory{
		New:       func() vmm.Monitor { return host },
		Image:     vmmtest.Image{Kernel: image, Initrd: image},
		Terminate: host.Terminate,
	})
	if left := host.Machines(); len(left) > 0 {
		t.Errorf("%d machines are left", len(left))
	}
}

// program imitates the program testguest.
func program(g *fake.Guest) func(net.Conn) {
	g.Print("testguest: ready\n")
	g.Use(time.Millisecond)
	return func(conn net.Conn) {
		for in := bufio.NewScanner(conn); in.Scan(); {
			answer, err := do(g, in.Text())
			if err != nil {
				answer = "error: " + err.Error()
			}
			if _, err := fmt.Fprintln(conn, answer); err != nil {
				return
			}
		}
	}
}

// memory is what the program remembers, as it lies in the guest's memory.
type memory struct {
	Value string
	Count int
	fill  []byte
}

func do(g *fake.Guest, line string) (string, error) {
	command, rest, _ := strings.Cut(line, " ")
	var m memory
	if b := g.Memory(); len(b) > 0 {
		line, fill, _ := bytes.Cut(b, []byte("\n"))
		if err := json.Unmarshal(line, &m); err != nil {
			return "", err
		}
		m.fill = fill
	}
	store := func(answer string) (string, error) {
		b, err := json.Marshal(m)
		g.SetMemory(slices.Concat(b, []byte("\n"), m.fill))
		return answer, err
	}
	switch command {
	case "ping":
		return "pong " + rest, nil
	case "set":
		m.Value = rest
		return store("ok")
	case "get":
		return m.Value, nil
	case "count":
		m.Count++
		return store(strconv.Itoa(m.Count))
	case "fill":
		n, err := strconv.Atoi(rest)
		m.fill = bytes.Repeat([]byte("filled"), n<<20/6)
		if err != nil {
			return "", err
		}
		return store("ok")
	case "sum":
		return fmt.Sprintf("%08x", crc32.ChecksumIEEE(m.fill)), nil
	case "cpus":
		return strconv.Itoa(g.Spec().VCPUs), nil
	case "console":
		n, err := strconv.Atoi(rest)
		g.Print(strings.Repeat("0123456789abcde\n", n/16))
		return "ok", err
	case "panic":
		g.Panic()
		return "", nil
	}
	device, text, _ := strings.Cut(rest, " ")
	disk := g.Spec().Disks[slices.Index([]string{"vda", "vdb"}, device)]
	switch command {
	case "serial":
		return disk.Serial, nil
	case "read":
		b, err := os.ReadFile(disk.Path)
		return strings.TrimRight(string(b[:512]), "\x00"), err
	case "write":
		if disk.ReadOnly {
			return "", errors.New("the disk is read-only")
		}
		block := make([]byte, 512)
		copy(block, text)
		return "ok", os.WriteFile(disk.Path, block, 0o600)
	}
	return "", errors.New("unknown command")
}

// TestHook fails a start at each of its steps and expects nothing to be left.
func TestHook(t *testing.T) {
	for _, step := range []string{fake.StepBoot, fake.StepSpawn, fake.StepRun} {
		broken := errors.New("broken")
		host := fake.New(program)
		host.Hook = func(_ context.Context, s, id string) error {
			if s == step && id == "m" {
				return broken
			}
			return nil
		}
		dir := t.TempDir()
		_, err := host.Boot(t.Context(), vmm.Spec{
			ID: "m", Dir: dir, VCPUs: 1, MemoryMiB: 1, MemoryFile: filepath.Join(dir, "memory"),
		})
		if !errors.Is(err, broken) {
			t.Errorf("step %s: got %v", step, err)
		}
		if left := host.Machines(); len(left) > 0 {
			t.Errorf("step %s: a machine is left", step)
		}
		if files, _ := os.ReadDir(dir); len(files) > 0 {
			t.Errorf("step %s: files are left: %v", step, files)
		}
	}
}
