package httpapi_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/wire"
)

// makeLink asks for a link.
func makeLink(t *testing.T, base, id, body string) wire.Link {
	t.Helper()
	resp, text := send(t, "POST", base+api+"/sandboxes/"+id+"/files/link", body)
	var l wire.Link
	if err := json.Unmarshal([]byte(text), &l); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%s: %s", body, text)
	}
	return l
}

// bare is the header of a request that has no token.
var bare = []string{"Authorization", ""}

func TestLinks(t *testing.T) {
	f := newFake()
	base, id := f.server(t), f.sandbox(t)
	up := makeLink(t, base, id, `{"path_base64":"L2EK/w==","method":"PUT","mode":"0600","ttl":60}`)
	if up.Method != "PUT" || !up.ExpiresAt.Equal(epoch.Add(time.Minute)) || up.MaxPartBytes != 95_000_000 || !strings.HasPrefix(up.URL, base+api+"/links/"+id+"?") {
		t.Errorf("the link is %+v", up)
	}
	down := makeLink(t, base, id, `{"path_base64":"L2EK/w=="}`)
	if down.Method != "GET" || !down.ExpiresAt.Equal(epoch.Add(15*time.Minute)) {
		t.Errorf("by default: %+v", down)
	}
	resp, text := send(t, "PUT", up.URL, "<b>content", bare...)
	if resp.StatusCode != 200 || !strings.Contains(text, `"complete":true`) || !strings.Contains(text, `"mode":"0600"`) {
		t.Errorf("PUT: %s", text)
	}
	resp, text = send(t, "GET", down.URL, "", bare...)
	h := resp.Header
	if resp.StatusCode != 200 || text != "<b>content" || h.Get("Content-Type") != "application/octet-stream" || h.Get("X-Content-Type-Options") != "nosniff" ||
		!strings.HasPrefix(h.Get("Content-Disposition"), "attachment; filename") || strings.Contains(h.Get("Content-Disposition"), "\n") {
		t.Errorf("GET: %q, %v", text, h)
	}
	resp, text = send(t, "HEAD", down.URL, "", bare...)
	if resp.StatusCode != 200 || text != "" || resp.ContentLength != 10 {
		t.Errorf("HEAD: %d %v", resp.StatusCode, resp.Header)
	}
	resp, text = send(t, "GET", down.URL, "", "Authorization", "", "Range", "bytes=3-5")
	if resp.StatusCode != 206 || text != "con" || resp.Header.Get("Content-Range") != "bytes 3-5/10" {
		t.Errorf("a range: %q %v", text, resp.Header)
	}
	if resp, text := send(t, "POST", down.URL, "", bare...); resp.StatusCode != 405 {
		t.Errorf("POST: %s", text)
	}

	u, err := url.Parse(down.URL)
	if err != nil {
		t.Fatal(err)
	}
	key := u.Query().Get("key")
	with := func(key string) string { return base + api + "/links/" + id + "?" + url.Values{"key": {key}}.Encode() }
	refused := map[string]struct{ method, url string }{
		"other method":  {"PUT", down.URL},
		"GET of a PUT":  {"GET", up.URL},
		"other sandbox": {"GET", strings.Replace(down.URL, id, f.sandbox(t), 1)},
		"cut":           {"GET", with(key[:len(key)-1])},
		"longer":        {"GET", with(key + "AAAA")},
		"no base64":     {"GET", with("***")},
	}
	for i := range key { // every character counts
		if i%7 == 0 {
			c := byte('A')
			if key[i] == c {
				c = 'B'
			}
			refused[fmt.Sprint("character ", i)] = struct{ method, url string }{"GET", with(key[:i] + string(c) + key[i+1:])}
		}
	}
	for name, w := range refused {
		resp, text := send(t, w.method, w.url, "", bare...)
		if e := checkError(t, resp, text); e.Code != "invalid_link" || resp.StatusCode != 403 {
			t.Errorf("%s: %s", name, text)
		}
	}
	f.mu.Lock()
	f.later = time.Minute
	f.mu.Unlock()
	resp, text = send(t, "PUT", up.URL, "late", bare...)
	if e := checkError(t, resp, text); e.Code != "invalid_link" || !strings.Contains(e.Message, "time is over") {
		t.Errorf("expired: %s", text)
	}
	if resp, _ := send(t, "GET", down.URL, "", bare...); resp.StatusCode != 200 {
		t.Error("the other link is over too")
	}
	if _, err := f.Delete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	resp, text = send(t, "GET", down.URL, "", bare...)
	if e := checkError(t, resp, text); e.Code != "sandbox_ended" {
		t.Errorf("of an ended sandbox: %s", text)
	}
	if resp, text := send(t, "POST", base+api+"/sandboxes/"+id+"/files/link", `{"path":"/x"}`); resp.StatusCode != 410 {
		t.Errorf("for an ended sandbox: %s", text)
	}
	for _, secret := range []string{key, key[:40], key[len(key)-20:]} {
		if strings.Contains(f.logged(), secret) {
			t.Error("the log holds a link's key")
		}
	}
}

func TestLinkParts(t *testing.T) {
	f := newFake()
	base, id := f.server(t), f.sandbox(t)
	up := makeLink(t, base, id, `{"path":"/big","method":"PUT"}`).URL
	for _, w := range []struct {
		query, body string
		status      int
		want        string
	}{
		{"&offset=0&size=6", "abc", 200, `"received":3,"size":6,"complete":false,"file":null`},
		{"&offset=5&size=6", "f", 422, "offset=3"},
		{"&offset=0", "abc", 400, "both offset and size"},
		{"&offset=-1&size=6", "abc", 400, "offset"},
		{"&offset=7&size=6", "abc", 422, "invalid_value"},
		{"&offset=3&size=6", "defg", 422, "beyond"},
		{"&offset=0&size=2000000001", "abc", 400, "size"},
		{"&offset=x&size=6", "abc", 400, "offset"},
		{"&offset=3&size=6", "def", 200, `"complete":true`},
	} {
		resp, text := send(t, "PUT", up+w.query, w.body, bare...)
		if resp.StatusCode != w.status || !strings.Contains(text, w.want) {
			t.Errorf("%s: %d %s", w.query, resp.StatusCode, text)
		}
		if _, err := f.Stat(t.Context(), "/big"); (err == nil) != strings.Contains(w.want, "true") {
			t.Errorf("%s: the file: %v", w.query, err)
		}
	}
	up = makeLink(t, base, id, `{"path":"/dev/null","method":"PUT"}`).URL
	for _, query := range []string{"", "&offset=0&size=1000000000"} {
		for _, size := range []int64{eqvps.MaxPartBytes + 1, -1} {
			req, err := http.NewRequest("PUT", up+query, io.LimitReader(zeros{}, eqvps.MaxPartBytes+1))
			if err != nil {
				t.Fatal(err)
			}
			req.ContentLength = size
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if e := checkError(t, resp, string(text)); e.Code != "too_large" || !strings.Contains(e.Message, "95000000") {
				t.Errorf("%s of %d bytes: %s", query, size, text)
			}
		}
	}
}

func TestLinkRequests(t *testing.T) {
	f := newFake()
	base, id := f.server(t), f.sandbox(t)
	for body, want := range map[string]int{
		`{"path":"/x","method":"DELETE"}`: 422, `{"path":"/x","ttl":59}`: 422, `{"path":"/x","ttl":3601}`: 422, `{"path":"/x","ttl":3600}`: 200,
		`{"path":"x"}`: 400, `{}`: 400, `{"path":"/x","path_base64":"L3g="}`: 400, `{"path":"/x","mode":"9"}`: 422, `{"path":"/x","mod":"9"}`: 400,
		`{"path":"/` + strings.Repeat("x", 4094) + `"}`: 200, `{"path":"/` + strings.Repeat("x", 4095) + `"}`: 400,
	} {
		resp, text := send(t, "POST", base+api+"/sandboxes/"+id+"/files/link", body)
		if resp.StatusCode != want {
			t.Errorf("%.60s: %d %s", body, resp.StatusCode, text)
		}
	}
	// The longest path makes a link that works.
	long := makeLink(t, base, id, `{"path":"/`+strings.Repeat("x", 4094)+`"}`)
	if resp, text := send(t, "GET", long.URL, "", bare...); resp.StatusCode != 404 || !strings.Contains(text, "file_not_found") {
		t.Errorf("the longest path: %d %s", resp.StatusCode, text)
	}
	if resp, text := send(t, "POST", base+api+"/sandboxes/"+foreign+"/files/link", `{"path":"/x"}`); resp.StatusCode != 404 {
		t.Errorf("another account's sandbox: %s", text)
	}
	if resp, _ := send(t, "POST", base+api+"/sandboxes/"+id+"/files/link", `{"path":"/x"}`, bare...); resp.StatusCode != 401 {
		t.Error("a link without a token")
	}
	resp, text := send(t, "POST", base+api+"/sandboxes/"+id+"/files/link", `{"path":"/x"}`, "X-Forwarded-Proto", "https")
	if !strings.Contains(text, `"url":"https://127.0.0.1:`) {
		t.Errorf("behind a proxy: %d %s", resp.StatusCode, text)
	}
}

func TestRanges(t *testing.T) {
	f := newFake()
	base, id := f.server(t), f.sandbox(t)
	f.files["/f"] = file{0o644, []byte("0123456789")}
	f.files["/empty"] = file{0o644, nil}
	for _, w := range []struct {
		path, header string
		status       int
		body, told   string
	}{
		{"/f", "bytes=0-0", 206, "0", "bytes 0-0/10"},
		{"/f", "bytes=2-4", 206, "234", "bytes 2-4/10"},
		{"/f", "Bytes=8-", 206, "89", "bytes 8-9/10"},
		{"/f", "bytes=0-", 206, "0123456789", "bytes 0-9/10"},
		{"/f", "bytes=-3", 206, "789", "bytes 7-9/10"},
		{"/f", "bytes=-99", 206, "0123456789", "bytes 0-9/10"},
		{"/f", "bytes=5-99999999999999999999999", 206, "56789", "bytes 5-9/10"},
		{"/f", "bytes=9-9223372036854775807", 206, "9", "bytes 9-9/10"},
		{"/f", "bytes=10-", 416, "", "bytes */10"},
		{"/f", "bytes=99999999999999999999-", 416, "", "bytes */10"},
		{"/f", "bytes=-0", 416, "", "bytes */10"},
		{"/empty", "bytes=5-", 416, "", "bytes */0"},
		{"/empty", "bytes=0-", 200, "", ""},
		{"/f", "bytes=0-1,3-4", 200, "0123456789", ""},
		{"/f", "bytes=4-2", 200, "0123456789", ""},
		{"/f", "bytes=", 200, "0123456789", ""},
		{"/f", "bytes=-", 200, "0123456789", ""},
		{"/f", "bytes=a-b", 200, "0123456789", ""},
		{"/f", "bytes=+1-2", 200, "0123456789", ""},
		{"/f", "lines=1-2", 200, "0123456789", ""},
	} {
		u := base + api + "/sandboxes/" + id + "/files/raw?path=" + w.path
		resp, text := send(t, "GET", u, "", "Range", w.header)
		if resp.StatusCode != w.status || resp.Header.Get("Content-Range") != w.told || w.status < 400 && (text != w.body || resp.Header.Get("Accept-Ranges") != "bytes") {
			t.Errorf("%s %s: %d %q %v", w.path, w.header, resp.StatusCode, text, resp.Header)
		}
		if w.status == 416 {
			if e := checkError(t, resp, text); e.Code != "invalid_range" {
				t.Errorf("%s: %s", w.header, text)
			}
		}
		head, _ := send(t, "HEAD", u, "", "Range", w.header)
		if head.StatusCode != resp.StatusCode || head.Header.Get("Content-Range") != w.told || w.status < 400 && head.ContentLength != int64(len(w.body)) {
			t.Errorf("HEAD %s: %d %v", w.header, head.StatusCode, head.Header)
		}
	}
	resp, text := send(t, "GET", base+api+"/sandboxes/"+id+"/files/raw?path=/f", "", "Range", "bytes=1-2", "If-Range", `"x"`)
	if resp.StatusCode != 200 || text != "0123456789" {
		t.Errorf("under a condition: %d %q", resp.StatusCode, text)
	}
}

func TestArrange(t *testing.T) {
	f := newFake()
	base, id := f.server(t), f.sandbox(t)
	f.files["/a"] = file{0o644, []byte("a")}
	f.files["/b"] = file{0o644, []byte("b")}
	for _, w := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/mkdir", `{"path":"/d","mode":"0700"}`, 200, `"type":"dir"`},
		{"POST", "/mkdir", `{"path":"/a"}`, 409, "file_exists"},
		{"POST", "/mkdir", `{"path":"d"}`, 400, "invalid_path"},
		{"POST", "/mkdir", `{"path":"/d","path_base64":"L2Q="}`, 400, "not both"},
		{"POST", "/mkdir", `{"path":"/d","mode":"x"}`, 422, "octal"},
		{"POST", "/move", `{"from":"/a","to":"/b"}`, 409, "file_exists"},
		{"POST", "/move", `{"from":"/a"}`, 400, "invalid_path"},
		{"POST", "/move", `{"from":"/x","to":"/b"}`, 404, "file_not_found"},
		{"POST", "/move", `{"from":"/a","to_base64":"L/8="}`, 200, `"path_base64":"L/8="`},
		{"POST", "/move", `{"from_base64":"L/8=","to":"/b","overwrite":true}`, 200, `"path":"/b"`},
		{"DELETE", "?path=/dir", "", 409, "not_empty"},
		{"DELETE", "?path=/dir&recursive=true", "", 200, `"entries":1000,"complete":false`},
		{"DELETE", "?path=/b", "", 200, `"path":"/b","entries":1,"complete":true`},
		{"DELETE", "?path=/b", "", 404, "file_not_found"},
		{"DELETE", "?path=b", "", 400, "invalid_path"},
		{"DELETE", "?path=/b&recursive=maybe", "", 400, "recursive"},
	} {
		resp, text := send(t, w.method, base+api+"/sandboxes/"+id+"/files"+w.path, w.body)
		if resp.StatusCode != w.status || !strings.Contains(text, w.want) {
			t.Errorf("%s %s %s: %d %s", w.method, w.path, w.body, resp.StatusCode, text)
		}
	}
}
