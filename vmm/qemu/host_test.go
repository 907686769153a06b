package qemu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseVersion(t *testing.T) {
	for out, want := range map[string]string{
		"QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\nCopyright": "7.2.22",
		"QEMU emulator version 10.0.2":                                  "10.0.2",
		"QEMU emulator version 9.1":                                     "9.1",
		"QEMU emulator version 7.1.0":                                   "error: install",
		"QEMU emulator version 2.12.0":                                  "error: install",
		"command not found":                                             "error: install",
		"":                                                              "error: install",
	} {
		got, err := parseVersion(out)
		if advice, fails := strings.CutPrefix(want, "error: "); fails {
			if err == nil || !strings.Contains(err.Error(), advice) {
				t.Errorf("%q: got %q, %v", out, got, err)
			}
		} else if got != want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", out, got, err, want)
		}
	}
}

func TestChooseAccelerator(t *testing.T) {
	dir := t.TempDir()
	device := filepath.Join(dir, "kvm")
	if err := os.WriteFile(device, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ cpuinfo, device, want, reason string }{
		"Intel":            {"model name\t: x\nflags\t\t: fpu vmx sse\n", device, "kvm", "opens"},
		"AMD":              {"flags\t\t: fpu svm\n", device, "kvm", "opens"},
		"software KVM":     {"flags\t\t: fpu sse vmxnet\nvmx flags\t: vnmi\n", device, "tcg", "neither vmx nor svm"},
		"no device":        {"flags\t\t: vmx\n", filepath.Join(dir, "none"), "tcg", "does not open"},
		"no flags at all":  {"processor\t: 0\n", device, "tcg", "neither vmx nor svm"},
		"second processor": {"flags : fpu\nflags : vmx\n", device, "tcg", "neither"},
	} {
		path := filepath.Join(t.TempDir(), "cpuinfo")
		if err := os.WriteFile(path, []byte(test.cpuinfo), 0o600); err != nil {
			t.Fatal(err)
		}
		got := chooseAccelerator(path, test.device)
		if got.name != test.want || !strings.Contains(got.reason, test.reason) {
			t.Errorf("%s: got %+v, want %s because %q", name, got, test.want, test.reason)
		}
	}
	if got := chooseAccelerator(filepath.Join(dir, "none"), device); got.name != "tcg" {
		t.Errorf("without cpuinfo: got %+v", got)
	}
}

// TestTSC compares two measurements: a guest whose clock is told the wrong
// rate keeps the wrong time.
func TestTSC(t *testing.T) {
	a, b := tscKHz(), tscKHz()
	if a < 100_000 || a > 20_000_000 {
		t.Fatalf("%d kHz is no rate of a processor", a)
	}
	if d := a - b; d < -a/1000 || d > a/1000 {
		t.Errorf("two measurements differ by more than 0.1 %%: %d and %d kHz", a, b)
	}
}

func TestMessages(t *testing.T) {
	f, err := messageFile()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := lastMessages(f); got != "" {
		t.Errorf("before any message: %q", got)
	}
	f.WriteString("first\nlast\xff\n")
	if got := lastMessages(f); got != "first; last?" {
		t.Errorf("got %q", got)
	}
	n, err := f.Write(make([]byte, 2*maxMessages))
	if err == nil || n > maxMessages {
		t.Errorf("the file grew: %d bytes written, %v", n, err)
	}
}
