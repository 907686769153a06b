package main

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// newCanary returns a value that nothing else holds. All its forms are below 64
// bytes: longer ones are searched for many times slower.
func newCanary() string { return "canary" + rand.Text()[:20] }

// findCanary lists where a value lies, as it is or in a form that anybody can
// read: files below the roots, and the arguments and environments of all
// processes of this host. What goes away meanwhile is passed by.
func findCanary(t *testing.T, canary string, roots ...string) []string {
	t.Helper()
	found := canaryInProcesses(t, canary)
	forms := formsOf(canary)
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			if bytes.Contains([]byte(path), []byte(canary)) {
				found = append(found, "the name "+path)
			}
			if !d.Type().IsRegular() {
				return nil
			}
			form, err := searchFile(path, forms)
			if form != "" {
				found = append(found, path+" ("+form+")")
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	return found
}

func canaryInProcesses(t *testing.T, canary string) (found []string) {
	t.Helper()
	var files []string
	for _, name := range []string{"cmdline", "environ"} {
		more, err := filepath.Glob("/proc/[0-9]*/" + name)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, more...)
	}
	forms, seen := formsOf(canary), 0
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		seen++
		if form := search(b, forms); form != "" {
			found = append(found, path+" ("+form+")")
		}
	}
	if seen < 4 {
		t.Fatalf("only %d files of processes could be read", seen)
	}
	return found
}

// formsOf returns the bytes to look for, by the name of the form.
func formsOf(s string) map[string][]byte {
	forms := map[string][]byte{
		"clear": []byte(s), "hex": []byte(hex.EncodeToString([]byte(s))), "HEX": []byte(strings.ToUpper(hex.EncodeToString([]byte(s)))),
	}
	var little, big []byte
	for _, u := range utf16.Encode([]rune(s)) {
		little, big = append(little, byte(u), byte(u>>8)), append(big, byte(u>>8), byte(u))
	}
	forms["UTF-16LE"], forms["UTF-16BE"] = little, big
	// Base64 of something that contains it: it depends on where it begins, and
	// the characters at both ends on what is around.
	for shift := range 3 {
		for name, enc := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "base64url": base64.RawURLEncoding} {
			coded := enc.EncodeToString(append(make([]byte, shift), s...))
			forms[fmt.Sprint(name, " at ", shift)] = []byte(coded[(shift*8+5)/6 : (shift+len(s))*8/6])
		}
	}
	return forms
}

func search(b []byte, forms map[string][]byte) string {
	for name, form := range forms {
		if bytes.Contains(b, form) {
			return name
		}
	}
	return ""
}

// searchFile looks at all that a file holds but its holes.
func searchFile(path string, forms map[string][]byte) (string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	const overlap = 256 // longer than any form
	buf := make([]byte, 1<<20)
	for at := int64(0); ; {
		at, err = unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return "", nil // only a hole is left
		}
		if err != nil {
			return "", err
		}
		n, err := f.ReadAt(buf, at)
		if form := search(buf[:n], forms); form != "" {
			return form, nil
		}
		if errors.Is(err, io.EOF) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		at += int64(n) - overlap
	}
}

// TestFindCanary plants one in every form and place.
func TestFindCanary(t *testing.T) {
	dir, canary := t.TempDir(), newCanary()
	write := func(name string, content []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if found := findCanary(t, canary, dir); len(found) > 0 {
		t.Fatalf("found before it was planted: %q", found)
	}
	var want []string
	for name, form := range formsOf(canary) {
		file := strings.ReplaceAll(name, " ", "-")
		write(file, append(bytes.Repeat([]byte{'.'}, 1000), form...))
		want = append(want, filepath.Join(dir, file)+" ("+name+")")
	}
	for shift := range 3 {
		file := fmt.Sprint("real-base64-", shift)
		write(file, []byte(base64.StdEncoding.EncodeToString([]byte("}}}"[:shift]+canary+"}"))))
		want = append(want, fmt.Sprintf("%s (base64 at %d)", filepath.Join(dir, file), shift))
	}
	// Across the border of what is read at once, and behind a hole.
	write("border", append(bytes.Repeat([]byte{'.'}, 1<<20-5), canary...))
	write("hole", nil)
	f, err := os.OpenFile(filepath.Join(dir, "hole"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte(canary), 1<<36); err != nil {
		t.Fatal(err)
	}
	f.Close()
	want = append(want, filepath.Join(dir, "border")+" (clear)", filepath.Join(dir, "hole")+" (clear)")
	for _, c := range []struct {
		args []string
		env  []string
		file string
	}{{[]string{"sleep", "60", canary}, nil, "cmdline"}, {[]string{"sleep", "60"}, []string{"A=" + canary}, "environ"}} {
		cmd := exec.Command("sh", append([]string{"-c", "read x"}, c.args...)...)
		cmd.Env = append(os.Environ(), c.env...)
		if _, err := cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		want = append(want, fmt.Sprintf("/proc/%d/%s (clear)", cmd.Process.Pid, c.file))
	}
	got := findCanary(t, canary, dir)
	slices.Sort(got)
	slices.Sort(want)
	// Base64 of both alphabets may be the same.
	for _, list := range [][]string{got, want} {
		for i := range list {
			list[i] = strings.Replace(list[i], "(base64url ", "(base64 ", 1)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
}
