package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

func codeOf(t *testing.T, what string, err error, want eqvps.Code) {
	t.Helper()
	if got := eqvps.ErrorCode(err); got != want {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

func put(t *testing.T, c *client.Client, id, path, content string) error {
	t.Helper()
	_, err := c.Upload(t.Context(), id, path, 0, strings.NewReader(content), int64(len(content)))
	return err
}

func fetch(t *testing.T, c *client.Client, id string, r eqvps.DownloadRequest) (string, error) {
	t.Helper()
	rd, _, err := c.DownloadRange(t.Context(), id, r)
	if err != nil {
		return "", err
	}
	defer rd.Close()
	b, err := io.ReadAll(rd)
	return string(b), err
}

// plain makes a request without a token, as whoever has a link does.
func plain(t *testing.T, method, url, body string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

// TestFiles goes through what can be done with files on one machine.
func TestFiles(t *testing.T) {
	_, c := startServer(t)
	id := newSandbox(t, c)
	t.Run("tree", func(t *testing.T) { testTree(t, c, id) })
	t.Run("special", func(t *testing.T) { testSpecialFiles(t, c, id) })
	t.Run("paths", func(t *testing.T) { testPaths(t, c, id) })
	t.Run("links", func(t *testing.T) { testLinks(t, c, id) })
}

func testTree(t *testing.T, c *client.Client, id string) {
	odd := "/root/tree/new\n\xff" + strings.Repeat("n", 250)
	fi, err := c.MakeDir(t.Context(), id, odd, 0o710)
	if err != nil || fi.Path != odd || fi.Mode != 0o710 || fi.Type != eqvps.TypeDir {
		t.Fatalf("%+v, %v", fi, err)
	}
	if err := put(t, c, id, odd+"/a", "0123456789"); err != nil {
		t.Fatal(err)
	}
	if got, err := fetch(t, c, id, eqvps.DownloadRequest{Path: odd + "/a", Offset: 3, Length: 4}); got != "3456" || err != nil {
		t.Errorf("a range: %q, %v", got, err)
	}
	if got, err := fetch(t, c, id, eqvps.DownloadRequest{Path: odd + "/a", Offset: -2}); got != "89" || err != nil {
		t.Errorf("the end: %q, %v", got, err)
	}
	_, err = fetch(t, c, id, eqvps.DownloadRequest{Path: odd + "/a", Offset: 10})
	codeOf(t, "a range beyond the end", err, eqvps.CodeInvalidRange)

	move := func(from, to string, overwrite bool) error {
		_, err := c.Move(t.Context(), id, eqvps.Move{From: from, To: to, Overwrite: overwrite})
		return err
	}
	codeOf(t, "move", move(odd+"/a", "/root/tree/b/c", false), "")
	codeOf(t, "across", move("/root/tree/b/c", "/dev/shm/x/c", false), "")
	if got := shell(t, c, id, "cat /dev/shm/x/c; ls -A /root/tree/b | wc -l"); got != "01234567890" {
		t.Errorf("after the move: %q", got)
	}
	codeOf(t, "put", put(t, c, id, "/root/tree/c", "new"), "")
	codeOf(t, "onto a file", move("/dev/shm/x/c", "/root/tree/c", false), eqvps.CodeFileExists)
	codeOf(t, "over a file", move("/dev/shm/x/c", "/root/tree/c", true), "")
	// What came with the image moves like all else.
	shell(t, c, id, "mkdir -p /usr/local/made/x && ln -s /etc /root/tree/etc && ln -s /root/tree/c /root/tree/to-c")
	codeOf(t, "a folder of the disk", move("/usr/local/made", "/root/tree/made", false), "")
	codeOf(t, "a folder of the image", move("/usr/share/doc", "/root/tree/doc", false), "")
	codeOf(t, "a file of the image", move("/etc/hostname", "/root/tree/hostname", false), "")

	_, err = c.Remove(t.Context(), id, "/root/tree", false)
	codeOf(t, "not empty", err, eqvps.CodeNotEmpty)
	for _, path := range []string{"/", "/root/..", "/proc", "/dev/shm"} {
		_, err := c.Remove(t.Context(), id, path, true)
		codeOf(t, path, err, eqvps.CodeInvalidPath)
	}
	shell(t, c, id, "for i in $(seq 300); do mkdir -p /root/tree/d$i/e; touch /root/tree/d$i/f /root/tree/d$i/e/g; done")
	n, err := c.Remove(t.Context(), id, "/root/tree", true)
	if err != nil || n < 1200 {
		t.Errorf("removed %d, %v", n, err)
	}
	if got := shell(t, c, id, "test ! -e /root/tree && test -e /etc/passwd && echo kept"); got != "kept" {
		t.Errorf("after the removal: %q", got)
	}
	// A folder of the image can go as well.
	if _, err := c.Remove(t.Context(), id, shell(t, c, id, "ls -d /usr/share/*/ | head -1"), true); err != nil {
		t.Error(err)
	}
}

// testSpecialFiles: what is no regular file is refused at once, and what makes
// its readers wait is soon given up.
func testSpecialFiles(t *testing.T, c *client.Client, id string) {
	shell(t, c, id, `mkdir -p /root/s && cd /root/s && mkfifo pipe && ln -s pipe to-pipe && ln -s /dev/zero to-zero && ln -s loop loop && mkdir dir && ln -s /etc/passwd host &&
		python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("/root/s/socket")'`)
	for _, path := range []string{"/root/s/pipe", "/root/s/to-pipe", "/dev/zero", "/root/s/to-zero", "/root/s/socket", "/root/s/dir", "/dev/vda"} {
		_, err := fetch(t, c, id, eqvps.DownloadRequest{Path: path})
		codeOf(t, "download "+path, err, eqvps.CodeNotAFile)
		codeOf(t, "upload "+path, put(t, c, id, path, "x"), eqvps.CodeNotAFile)
	}
	_, err := fetch(t, c, id, eqvps.DownloadRequest{Path: "/root/s/loop"})
	codeOf(t, "loop", err, eqvps.CodeInvalidPath)
	// A link leads to a file of the guest, never of the host.
	host, _ := os.ReadFile("/etc/passwd")
	if got, err := fetch(t, c, id, eqvps.DownloadRequest{Path: "/root/s/host"}); err != nil || got == string(host) || !strings.HasPrefix(got, "root:") {
		t.Errorf("a link: %q, %v", got, err)
	}
	entries, _, err := c.ListFiles(t.Context(), id, "/root/s", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range entries {
		got[strings.TrimPrefix(e.Path, "/root/s/")] = string(e.Type) + " " + e.Target
	}
	if diff := cmp.Diff(map[string]string{
		"pipe": "other ", "socket": "other ", "dir": "dir ", "to-pipe": "symlink pipe", "to-zero": "symlink /dev/zero", "loop": "symlink loop", "host": "symlink /etc/passwd",
	}, got); diff != "" {
		t.Error(diff)
	}
	// The kernel's log ends where a reader would have to wait.
	for {
		start := time.Now()
		text, err := fetch(t, c, id, eqvps.DownloadRequest{Path: "/proc/kmsg"})
		if time.Since(start) > 20*time.Second {
			t.Fatal("a file that makes its readers wait is not given up")
		}
		if err != nil {
			codeOf(t, "/proc/kmsg", err, eqvps.CodeNotAFile)
			break
		}
		if text == "" {
			t.Fatal("nothing was read, and no error says why")
		}
	}
	for path, want := range map[string]string{"/proc/sys/kernel/ostype": "Linux\n", "/sys/kernel/mm/transparent_hugepage/enabled": ""} {
		text, err := fetch(t, c, id, eqvps.DownloadRequest{Path: path})
		if err != nil || want != "" && text != want || text == "" {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
}

func testPaths(t *testing.T, c *client.Client, id string) {
	for path, want := range map[string]eqvps.Code{
		"":                                  eqvps.CodeInvalidRequest,
		"relative":                          eqvps.CodeInvalidPath,
		"/a\x00b":                           eqvps.CodeInvalidPath,
		"/" + strings.Repeat("x/", 2048):    eqvps.CodeInvalidPath,
		"/root/" + strings.Repeat("n", 256): eqvps.CodeInvalidPath,
		"/root/p/":                          eqvps.CodeNotAFile,
		"/":                                 eqvps.CodeNotAFile,
		"/root/p/../q//x":                   "",
		"//root/./p2":                       "",
		"/root/../etc/p3":                   "",
		"/root/" + strings.Repeat("n", 255): "",
		"/root/" + strings.Repeat(strings.Repeat("d", 254)+"/", 16) + "123456789": "",
		"/root/a\nb\xff\x1b[2J": "",
	} {
		codeOf(t, fmt.Sprintf("%.40q", path), put(t, c, id, path, "x"), want)
		if want == "" {
			if got, err := fetch(t, c, id, eqvps.DownloadRequest{Path: path}); got != "x" || err != nil {
				t.Errorf("%.40q comes back as %q, %v", path, got, err)
			}
		}
	}
	if got := shell(t, c, id, "cat /root/q/x /root/p2 /etc/p3"); got != "xxx" {
		t.Errorf("the files are %q", got)
	}
}

func testLinks(t *testing.T, c *client.Client, id string) {
	link := func(path, method string) string {
		t.Helper()
		l, err := c.CreateLink(t.Context(), id, path, method, 0, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		return l.URL
	}
	const path = "/root/links/\xff\n<b>.html"
	up, down := link(path, "PUT"), link(path, "GET")
	resp, body := plain(t, "GET", down, "")
	if resp.StatusCode != 404 || !strings.Contains(body, "file_not_found") {
		t.Errorf("before the file is there: %s", body)
	}
	var got wire.LinkUpload
	for i, p := range []struct {
		query, content string
		status         int
		received       int64
	}{
		{"&offset=0&size=10", "01234", 200, 5},
		{"&offset=0&size=10", "01234", 200, 5},
		{"&offset=7&size=10", "789", 422, 0},
		{"&offset=5&size=10", "", 422, 0}, // replaced below
		{"&offset=5&size=10", "56789", 200, 10},
		{"&offset=5&size=10", "56789", 200, 10},
	} {
		if p.content == "" {
			if got := shell(t, c, id, "ls -A /root/links | wc -l"); got != "0" {
				t.Errorf("%s entries are there too early", got)
			}
			continue
		}
		resp, body := plain(t, "PUT", up+p.query, p.content)
		if resp.StatusCode != p.status || p.status != 200 && !strings.Contains(body, "offset=5") {
			t.Errorf("part %d: %d %s", i, resp.StatusCode, body)
		}
		if p.status == 200 {
			if err := json.Unmarshal([]byte(body), &got); err != nil || got.Received != p.received || got.Complete != (p.received == 10) {
				t.Errorf("part %d: %s", i, body)
			}
		}
	}
	resp, body = plain(t, "GET", down, "", "Range", "bytes=2-4")
	if resp.StatusCode != 206 || body != "234" || resp.Header.Get("Content-Range") != "bytes 2-4/10" ||
		!strings.HasPrefix(resp.Header.Get("Content-Disposition"), "attachment") || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("a range: %d %q %v", resp.StatusCode, body, resp.Header)
	}
	if resp, body := plain(t, "PUT", up, "whole"); resp.StatusCode != 200 {
		t.Errorf("a whole upload: %s", body)
	}
	if got := shell(t, c, id, `stat -c '%s %a' /root/links/*`); got != "5 600" {
		t.Errorf("in the sandbox: %s", got)
	}
	if resp, body := plain(t, "HEAD", down, ""); resp.StatusCode != 200 || resp.ContentLength != 5 || body != "" {
		t.Errorf("HEAD: %d, %d", resp.StatusCode, resp.ContentLength)
	}
	for name, w := range map[string]struct{ method, url string }{"other method": {"PUT", down}, "tampered": {"GET", down[:len(down)-4] + "AAAA"}, "cut": {"GET", down[:len(down)-30]}} {
		if resp, body := plain(t, w.method, w.url, ""); resp.StatusCode != 403 || !strings.Contains(body, "invalid_link") {
			t.Errorf("%s: %d %s", name, resp.StatusCode, body)
		}
	}
}

// TestFullDisk: every way to write says so, nothing half written stays, and
// when there is room again all is as before.
func TestFullDisk(t *testing.T) {
	s, c := startServer(t)
	sb, err := c.Create(t.Context(), wire.CreateSandbox{Tariff: "micro"})
	if err != nil {
		t.Fatal(err)
	}
	id := sb.ID
	up, err := c.CreateLink(t.Context(), id, "/root/new/link", "PUT", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := put(t, c, id, "/root/kept", "old"); err != nil {
		t.Fatal(err)
	}
	shell(t, c, id, "fallocate -l $(($(df --output=avail -B1 /root | tail -1) - 65536)) /root/big; dd if=/dev/zero of=/root/rest bs=4k 2>/dev/null; i=0; while mkdir /root/full$i 2>/dev/null; do i=$((i+1)); done; true")
	big := bytes.Repeat([]byte("x"), 4<<20)
	full := func(what string, err error) {
		t.Helper()
		codeOf(t, what, err, eqvps.CodeDiskFull)
		if err != nil && !strings.Contains(err.Error(), "disk is full") {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = c.Upload(t.Context(), id, "/root/kept", 0, bytes.NewReader(big), int64(len(big)))
	full("raw", err)
	_, err = c.MakeDir(t.Context(), id, "/root/new/dir", 0)
	full("mkdir", err)
	admin, err := os.ReadFile(machineData + "/" + adminTokenName)
	if err != nil {
		t.Fatal(err)
	}
	inline, err := json.Marshal(wire.PutFile{Path: "/root/new/inline", Content: new(string(big))})
	if err != nil {
		t.Fatal(err)
	}
	resp, body := plain(t, "PUT", "http://"+s.Addr()+wire.Prefix+"/sandboxes/"+id+"/files", string(inline), "Authorization", "Bearer "+strings.TrimSpace(string(admin)))
	if resp.StatusCode != 507 || !strings.Contains(body, "disk is full") {
		t.Errorf("inline: %d %s", resp.StatusCode, body)
	}
	for _, query := range []string{"", "&offset=0&size=5000000"} {
		if resp, body := plain(t, "PUT", up.URL+query, string(big)); resp.StatusCode != 507 || !strings.Contains(body, "disk is full") {
			t.Errorf("link %s: %d %s", query, resp.StatusCode, body)
		}
	}
	if got := shell(t, c, id, "cat /root/kept; ls -A /root | grep -v full | sort | tr '\\n' ' '"); !strings.HasPrefix(got, "old") || strings.Contains(got, "eqvps") || strings.Contains(got, "new") {
		t.Errorf("in the sandbox: %q", got)
	}
	if _, err := c.Remove(t.Context(), id, "/root/big", false); err != nil {
		t.Errorf("removing on a full disk: %v", err)
	}
	if _, err := c.Upload(t.Context(), id, "/root/kept", 0, bytes.NewReader(big), int64(len(big))); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if resp, body := plain(t, "PUT", up.URL, string(big)); resp.StatusCode != 200 {
		t.Errorf("with room again, by a link: %s", body)
	}
	if _, err := c.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if resp, body := plain(t, "PUT", up.URL, "x"); resp.StatusCode != 410 || !strings.Contains(body, "sandbox_ended") {
		t.Errorf("a link of a sandbox that has ended: %d %s", resp.StatusCode, body)
	}
}
