package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

// Kind of fault: an upload says success, and the file is missing or short.
func TestUploadIsWholeOrNotThere(t *testing.T) {
	s, c := startServer(t)
	id := newSandbox(t, c)
	all := make([]byte, uploadSizes[len(uploadSizes)-1])
	_, _ = rand.NewChaCha8([32]byte{5}).Read(all)
	for _, size := range uploadSizes {
		content := all[:size]
		path := fmt.Sprintf("/root/a/b/%d.bin", size)
		if _, err := c.Upload(t.Context(), id, path, 0o640, bytes.NewReader(content), int64(size)); err != nil {
			t.Fatalf("%d bytes: %v", size, err)
		}
		sum := sha256.Sum256(content)
		if got := shell(t, c, id, "stat -c '%s %a' "+path+"; sha256sum "+path); got != fmt.Sprintf("%d 640\n%x  %s", size, sum, path) {
			t.Errorf("%d bytes: in the sandbox: %s", size, got)
		}
		back := download(t, c, id, path, size)
		if sha256.Sum256(back) != sum {
			t.Errorf("%d bytes came back as %d, or others", size, len(back))
		}
		shell(t, c, id, "rm "+path)
	}

	// Over the limit: it says so before anything is sent.
	resp := uploadHead(t, s, id, "/root/c/big", eqvps.MaxFileBytes+1, nil)
	if !strings.Contains(resp, " 413 ") || !strings.Contains(resp, fmt.Sprint(eqvps.MaxFileBytes)) {
		t.Errorf("over the limit: %s", resp)
	}

	// Cut half-way, and by a client that says it sends more than it does:
	// nothing under the name, what was there before stays, and no disk is lost.
	shell(t, c, id, "mkdir -p /root/d; echo old > /root/d/kept")
	free := "df --output=avail -k /root | tail -1"
	before := shell(t, c, id, free)
	for _, path := range []string{"/root/d/cut", "/root/d/kept"} {
		uploadHead(t, s, id, path, 50<<20, all[:min(len(all), 25<<20)])
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		got := shell(t, c, id, "ls -A /root/d; cat /root/d/kept; "+free)
		var avail, had int
		fmt.Sscan(got[strings.LastIndexByte(got, '\n')+1:], &avail)
		fmt.Sscan(before, &had)
		if strings.HasPrefix(got, "kept\nold\n") && avail > had-4096 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after uploads that were cut: %s (before: %s)", got, before)
		}
	}
	if got := shell(t, c, id, "test ! -e /root/c/big; echo $?"); got != "0" {
		t.Error("a file over the limit is there")
	}
}

// download returns a file, whose announced size must be right.
func download(t *testing.T, c *client.Client, id, path string, size int) []byte {
	t.Helper()
	r, n, err := c.Download(t.Context(), id, path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	back, err := io.ReadAll(r)
	if err != nil || n != int64(size) {
		t.Errorf("%s: %d bytes are announced, want %d; %v", path, n, size, err)
	}
	return back
}

// uploadHead announces an upload of size bytes and sends less, then waits for
// an answer if it sent nothing, and hangs up.
func uploadHead(t *testing.T, s *Server, id, path string, size int64, content []byte) string {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "PUT %s/sandboxes/%s/files/raw?path=%s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n",
		wire.Prefix, id, path, s.Addr(), adminSecret(t), size)
	if content == nil {
		b := make([]byte, 4096)
		n, err := conn.Read(b)
		if err != nil {
			t.Error(err)
		}
		return string(b[:n])
	}
	if _, err := conn.Write(content); err != nil {
		t.Fatal(err)
	}
	return ""
}

// Kind of fault: bytes go through text somewhere, and come out changed.
func TestBytesStayBytes(t *testing.T) {
	s, c := startServer(t)
	id := newSandbox(t, c)
	const sum = "785b0751fc2c53dc14a4ce3d800e69ef9ce1009eb327ccf458afe09c242c26c9"
	all := make([]byte, 1024)
	for i := range all {
		all[i] = byte(i)
	}
	check := func(how string, b []byte) {
		t.Helper()
		if got := sha256.Sum256(b); hex.EncodeToString(got[:]) != sum {
			t.Errorf("%s: %d bytes, SHA-256 %x", how, len(b), got)
		}
	}
	check("here", all)
	if _, err := c.Upload(t.Context(), id, "/root/raw", 0, bytes.NewReader(all), int64(len(all))); err != nil {
		t.Fatal(err)
	}
	inline, err := json.Marshal(wire.PutFile{Path: "/root/inline", ContentBase64: &all})
	if err != nil {
		t.Fatal(err)
	}
	if resp, body := request(t, s, "PUT", "/sandboxes/"+id+"/files", string(inline)); resp.StatusCode != 200 {
		t.Fatalf("inline: %s\n%s", resp.Status, body)
	}
	shell(t, c, id, "python3 -c 'open(\"/root/made\", \"wb\").write(bytes(range(256)) * 4)'")
	for _, path := range []string{"/root/raw", "/root/inline", "/root/made"} {
		if got := shell(t, c, id, "sha256sum < "+path); got != sum+"  -" {
			t.Errorf("%s in the sandbox: %s", path, got)
		}
		check(path+" raw", download(t, c, id, path, len(all)))
		resp, body := request(t, s, "GET", "/sandboxes/"+id+"/files?path="+path, "")
		var f wire.File
		if err := json.Unmarshal([]byte(body), &f); err != nil || resp.StatusCode != 200 {
			t.Errorf("%s inline: %s %v\n%s", path, resp.Status, err, body)
		}
		check(path+" inline", f.ContentBase64)
		r, err := c.Exec(t.Context(), id, wire.ExecRequest{Command: "cat " + path})
		if err != nil {
			t.Fatal(err)
		}
		check(path+" printed", r.StdoutBase64)
	}
	r, err := c.Exec(t.Context(), id, wire.ExecRequest{Command: "sha256sum", StdinBase64: all})
	if err != nil || r.Stdout != sum+"  -\n" {
		t.Errorf("on standard input: %+v, %v", r, err)
	}
}
