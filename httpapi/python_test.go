package httpapi_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Versions that the tests need from the Python package index.
const (
	publishedClient  = "eqvps==0.2.0"
	openAPIValidator = "openapi-spec-validator==0.7.2"
)

// python returns the interpreter of a virtual environment that has both. It is
// made once and kept in $EQVPS_TEST_CACHE, or in the user's cache folder.
func python(t *testing.T) string {
	t.Helper()
	cache := os.Getenv("EQVPS_TEST_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			t.Fatalf("set EQVPS_TEST_CACHE to a folder for test tools: %v", err)
		}
		cache = filepath.Join(dir, "eqvps-test")
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	// Other test processes may be at it too.
	lock, err := os.OpenFile(filepath.Join(cache, "httpapi-python.lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	venv := filepath.Join(cache, "httpapi-python")
	interpreter := filepath.Join(venv, "bin", "python")
	want := publishedClient + "\n" + openAPIValidator + "\n"
	stamp := filepath.Join(venv, "requirements.done")
	if have, err := os.ReadFile(stamp); err == nil && string(have) == want {
		return interpreter
	}
	for _, args := range [][]string{
		{"python3", "-m", "venv", "--clear", venv},
		{interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", publishedClient, openAPIValidator},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("this test needs python3 with venv, and pip must reach its package index: %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	if err := os.WriteFile(stamp, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
	return interpreter
}

// TestPublishedClient: the client that people have installed works unchanged.
func TestPublishedClient(t *testing.T) {
	py := python(t)
	cmd := exec.CommandContext(t.Context(), py, "testdata/published_client.py", newFake().server(t)+api, secret)
	cmd.Env = append(os.Environ(), "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1", "PYTHONUTF8=1", "PYTHONDONTWRITEBYTECODE=1")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "ok" {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestOpenAPIValid holds the document against the specification of OpenAPI 3.1.
func TestOpenAPIValid(t *testing.T) {
	py := python(t)
	_, doc := send(t, "GET", newFake().server(t)+"/openapi.json", "")
	file := filepath.Join(t.TempDir(), "openapi.json")
	if err := os.WriteFile(file, []byte(doc), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), py, "-m", "openapi_spec_validator", "--schema", "3.1", file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
