package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/client"
	"github.com/eqvps/eqvps/wire"
)

// accounted waits until there are as many machines on the host as sandboxes in
// the list, which is what everybody is billed by, and returns how many.
func accounted(t *testing.T, c *client.Client) int {
	t.Helper()
	var list *wire.SandboxList
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		var err error
		if list, err = c.List(t.Context(), client.ListOptions{Limit: 1000}); err != nil {
			t.Fatal(err)
		}
		if n := len(monitors(machineData)); n == len(list.Data) {
			return n
		} else if time.Now().After(deadline) {
			t.Fatalf("%d machines run for %d sandboxes", n, len(list.Data))
		}
	}
}

// deleteAll deletes every sandbox that is listed.
func deleteAll(t *testing.T, c *client.Client) {
	t.Helper()
	list, err := listAll(t.Context(), c, client.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range list {
		if _, err := c.Delete(t.Context(), sb.ID); err != nil {
			t.Error(err)
		}
	}
}

// Kind of fault: whoever asked for a sandbox is gone before it is there, and it
// runs on unlisted. Each is either undone and free, or listed like any other.
func TestClientGoneWhileCreating(t *testing.T) {
	s, c := startServer(t)
	if err := s.Prepare(t.Context(), eqvps.DefaultTariff); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, cut := range createCuts {
		for range 4 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), cut)
				defer cancel()
				if _, err := c.Create(ctx, wire.CreateSandbox{}); err != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("cut after %s: %v", cut, err)
				}
			})
		}
		wg.Wait()
		accounted(t, c)
	}
	all, err := listAll(t.Context(), c, client.ListOptions{State: "all"})
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range all {
		if sb.StartedAt == nil && sb.BilledMicroUSD != 0 {
			t.Errorf("%s never ran and costs %d", sb.ID, sb.BilledMicroUSD)
		}
	}
	deleteAll(t, c)
	if left := leftoverMachines(machineData); len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, "\n"))
	}
}

// Kind of fault: the same when it is the server that goes, in the middle of
// several creates.
func TestServerGoneWhileCreating(t *testing.T) {
	for _, cut := range serverCuts {
		t.Run(cut.String(), func(t *testing.T) {
			server, addr := spawnServer(t)
			c := adminClient(t, addr)
			// The first one loads the template; no machine is made meanwhile.
			if _, err := c.Create(t.Context(), wire.CreateSandbox{}); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			var refused atomic.Int32
			for range 4 {
				wg.Go(func() {
					if _, err := c.Create(t.Context(), wire.CreateSandbox{}); err != nil {
						refused.Add(1)
					}
				})
			}
			time.Sleep(cut)
			if err := server.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = server.Wait()
			wg.Wait()

			_, c = startServer(t)
			t.Logf("%d creates had no answer, %d sandboxes run", refused.Load(), accounted(t, c))
			deleteAll(t, c)
			if left := leftoverMachines(machineData); len(left) > 0 {
				t.Errorf("left behind: %s", strings.Join(left, "\n"))
			}
		})
	}
}

// Kind of fault: a sandbox that never worked is charged, or keeps what it took.
func TestFailedCreateCostsNothing(t *testing.T) {
	began := time.Now()
	var broken atomic.Pointer[string]
	cfg := testConfig(machineData, t.Output())
	cfg.Step = func(step string) error {
		if b := broken.Load(); b != nil && strings.HasPrefix(step, *b) {
			return errors.New("broken by the test in /var/lib/secret")
		}
		return nil
	}
	s, err := StartServer(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	c := adminClient(t, s.Addr())
	// One that works, so that nobody takes the template for damaged.
	works, err := c.Create(t.Context(), wire.CreateSandbox{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Delete(t.Context(), works.ID); err != nil {
		t.Fatal(err)
	}
	for _, w := range []struct {
		step string
		req  wire.CreateSandbox
		code eqvps.Code
	}{
		{req: wire.CreateSandbox{Tariff: "colossal"}, code: eqvps.CodeUnknownTariff},
		{req: wire.CreateSandbox{Image: "no-such-image"}, code: eqvps.CodeUnknownImage},
		{step: "place.cgroup", code: eqvps.CodeStartFailed},
		{step: "start.disk", code: eqvps.CodeStartFailed},
		{step: "start.restore", code: eqvps.CodeStartFailed},
		{step: "start.renew", code: eqvps.CodeStartFailed}, // the guest's agent does not answer
	} {
		broken.Store(nil)
		if w.step != "" {
			broken.Store(&w.step)
		}
		_, err := c.Create(t.Context(), w.req)
		if eqvps.ErrorCode(err) != w.code || strings.Contains(err.Error(), "/var/lib/secret") {
			t.Errorf("%s%s%s: %v", w.step, w.req.Tariff, w.req.Image, err)
		}
		if n := accounted(t, c); n != 0 {
			t.Errorf("after %s %d sandboxes are listed", w.step, n)
		}
	}
	broken.Store(nil)
	all, err := listAll(t.Context(), c, client.ListOptions{State: "all"})
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for _, sb := range all {
		if sb.StartedAt != nil || sb.CreatedAt.Before(began) {
			continue // it worked, or is another test's
		}
		failed++
		u, err := c.Usage(t.Context(), sb.ID)
		if err != nil || sb.State != "deleted" || *sb.Reason != "error" || sb.BilledMicroUSD != 0 || u.BilledMicroUSD != 0 {
			t.Errorf("a failed one is %+v, %+v, %v", sb, u, err)
		}
	}
	if failed < 4 {
		t.Errorf("%d failed creates are on record", failed)
	}
	if left := leftoverMachines(machineData); len(left) > 0 {
		t.Errorf("left behind: %s", strings.Join(left, "\n"))
	}
}

// clockOf reads a sandbox's clock and checks that it is the host's.
func clockOf(t *testing.T, c *client.Client, id string) int64 {
	t.Helper()
	began := time.Now()
	ns, err := strconv.ParseInt(shell(t, c, id, "date +%s%N"), 10, 64)
	ended := time.Now()
	if err != nil {
		t.Fatal(err)
	}
	if at := time.Unix(0, ns); at.Before(began.Add(-time.Second)) || at.After(ended.Add(time.Second)) {
		t.Errorf("its clock says %s between %s and %s", at, began, ended)
	}
	return ns
}

// Kind of fault: a machine wakes with the time of its snapshot, and certificates
// are not yet valid. In every machine the clock is right from the first
// command on, and never goes back.
func TestClockIsRightFromTheStart(t *testing.T) {
	server, addr := spawnServer(t) // with a machine on standby
	c := adminClient(t, addr)
	waitFor(t, time.Minute, "a machine stands by", func() bool { return len(monitors(machineData)) == 1 })
	time.Sleep(standbyAge)
	stoodBy, err := c.Create(t.Context(), wire.CreateSandbox{})
	if err != nil {
		t.Fatal(err)
	}
	first := clockOf(t, c, stoodBy.ID)
	fresh, err := c.Create(t.Context(), wire.CreateSandbox{Tariff: "micro"}) // restored now
	if err != nil {
		t.Fatal(err)
	}
	clockOf(t, c, fresh.ID)

	// A server in the sandbox, with a certificate that has just been made, here.
	certFile, keyFile := writePair(t, t.TempDir(), "localhost")
	if _, err := tls.LoadX509KeyPair(certFile, keyFile); err != nil {
		t.Fatal(err)
	}
	for file, name := range map[string]string{certFile: "/root/cert.pem", keyFile: "/root/key.pem"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Upload(t.Context(), stoodBy.ID, name, 0, bytes.NewReader(b), int64(len(b))); err != nil {
			t.Fatal(err)
		}
	}
	if got := shell(t, c, stoodBy.ID, `python3 -c '
import ssl, socket, threading
ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); ctx.load_cert_chain("/root/cert.pem", "/root/key.pem")
s = socket.create_server(("127.0.0.1", 0))
def serve():
    with ctx.wrap_socket(s.accept()[0], server_side=True) as c: c.sendall(b"hello")
threading.Thread(target=serve).start()
with ssl.create_default_context(cafile="/root/cert.pem").wrap_socket(socket.create_connection(s.getsockname()), server_hostname="localhost") as c: print(c.recv(5).decode())'`); got != "hello" {
		t.Errorf("TLS says %q", got)
	}
	time.Sleep(clockApart)
	if second := clockOf(t, c, stoodBy.ID); second < first+int64(clockApart) {
		t.Errorf("%s later its clock had gone from %d to %d", clockApart, first, second)
	}
	stopServer(t, server)
	_, c = startServer(t)
	for _, id := range []string{stoodBy.ID, fresh.ID} {
		deleteAtEnd(t, c, id)
		clockOf(t, c, id)
	}
}

// Kind of fault: names do not resolve, or only after a timeout. What is here
// resolves without anybody's help, and what is nowhere is not found at once.
func TestNamesResolve(t *testing.T) {
	_, c := startServer(t)
	id := newSandbox(t, c)
	if got := shell(t, c, id, `awk '$1 == "nameserver" { print $2 }' /etc/resolv.conf | grep -c '^127\.' || true`); got != "0" {
		t.Errorf("%s resolvers are on the loopback, where nobody listens", got)
	}
	for command, want := range map[string]string{
		`getent ahostsv4 localhost | awk 'NR == 1 { print $1 }'`:                                                 "127.0.0.1",
		`getent hosts "$(hostname)" | awk '{ print $2 }'`:                                                        strings.ReplaceAll(id, "_", "-"),
		`python3 -c 'import socket; print(socket.gethostbyname("localhost"))'`:                                   "127.0.0.1",
		`python3 -c 'import socket; print(socket.gethostbyname(socket.gethostname())[:4])'`:                      "127.",
		`node -e 'require("dns").lookup("localhost", 4, (e, a) => console.log(e || a))'`:                         "127.0.0.1",
		`node -e 'require("dns").lookup(require("os").hostname(), (e, a) => console.log(e ? e.code : "found"))'`: "found",
		// A server on the loopback, by its name, also where IPv6 would be tried first.
		`python3 -m http.server 8099 --bind 127.0.0.1 >/dev/null 2>&1 & for i in $(seq 100); do curl -s -o /dev/null -w '%{http_code}' http://localhost:8099/ && break; sleep 0.1; done`: "200",
		`command -v sudo >/dev/null && sudo true 2>&1; echo done`: "done",
	} {
		got := shell(t, c, id, command)
		if got = strings.TrimLeft(got, "0"); got != want { // curl says 000 until there is an answer
			t.Errorf("%s says %q, want %q", command, got, want)
		}
	}
	// Not found, which is an answer, instead of a timeout, which is none.
	r, err := c.Exec(t.Context(), id, wire.ExecRequest{Command: `
getent hosts no-such-name.invalid; echo $?
python3 -c 'import socket
try: socket.gethostbyname("no-such-name.invalid")
except socket.gaierror as e: print(e.errno == socket.EAI_NONAME or e.errno == socket.EAI_NODATA)'
node -e 'require("dns").lookup("no-such-name.invalid", e => console.log(e.code))'`, Options: wire.Options{Timeout: 30}})
	if err != nil || r.Stdout != "2\nTrue\nENOTFOUND\n" {
		t.Errorf("a name that does not exist: %+v, %v", r, err)
	}
	if got := shell(t, c, id, "cat /proc/net/if_inet6 2>/dev/null | grep -vc ' lo$' || true"); got != "0" {
		t.Errorf("%s interfaces have IPv6, which leads nowhere", got)
	}
}

// Kind of fault: /tmp lies in memory and is too small for what installers put
// there.
func TestTmpIsOnDisk(t *testing.T) {
	_, c := startServer(t)
	sb, err := c.Create(t.Context(), wire.CreateSandbox{Tariff: tmpTariff})
	if err != nil {
		t.Fatal(err)
	}
	deleteAtEnd(t, c, sb.ID)
	task := startTask(t, c, sb.ID, wire.ExecRequest{Command: fmt.Sprintf("dd if=/dev/zero of=/tmp/big bs=1M count=%d conv=fsync 2>/dev/null && stat -c %%s /tmp/big", tmpMiB)})
	f := &follower{id: sb.ID, task: task}
	o := f.end(t, c)
	if o.State != "done" || strings.TrimSpace(f.out.String()) != fmt.Sprint(tmpMiB<<20) {
		t.Errorf("%s: %q %q", o.State, f.out.String(), f.errout.String())
	}
	// What is not cache is nearly all of the memory still.
	if got := shell(t, c, sb.ID, `awk '/^MemTotal:/ { all = $2 } /^MemAvailable:/ { print ($2 > all / 2) }' /proc/meminfo`); got != "1" {
		t.Error("the file takes memory")
	}
}
