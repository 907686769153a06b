"""Drives a server with the client that people have installed.

Prints "ok" when everything answered as that client documents it. Arguments:
base URL, token.
"""

import sys

import eqvps
from eqvps import Sandbox

base, token = sys.argv[1:]
access = {"api_key": token, "base_url": base}


def raises(kind, status, code, call):
    try:
        call()
    except kind as e:
        assert type(e) is kind and e.status == status and e.code == code and e.message, repr(e)
        return e
    raise AssertionError("no %s" % kind.__name__)


with Sandbox.create(tariff="micro", idle_timeout=60, ttl=3600, env={"KEY": "value"}, **access) as sb:
    assert sb.id.startswith("sb_") and (sb.mode, sb.tariff, sb.state) == ("ephemeral", "micro", "running"), sb.info
    assert sb.env_keys == ["KEY"], sb.info
    assert sb.id in [s.id for s in Sandbox.list(**access)]
    assert Sandbox.connect(sb.id, **access).refresh().state == "running"

    r = sb.run("echo hi")
    assert r.ok and (r.exit_code, r.stdout, r.stderr, r.timed_out, r.truncated) == (0, "hi\n", "", False, False), r
    assert r.duration_ms == 5
    assert sb.exec(["echo", "a b"]).stdout == "a b\n"
    assert sb.exec("cat", stdin="tést").stdout == "tést"
    assert sb.exec("cwd", cwd="/tmp").stdout == "/tmp"
    assert sb.exec("env", env={"A": 1}).stdout == "A"
    assert sb.exec("timeout", timeout=55).stdout == "55s"
    r = sb.exec("fail")
    assert not r.ok and r.exit_code == 3 and r.stderr == "no\n", r
    r = sb.exec("late", timeout=4)
    assert r.timed_out and r.exit_code == 124 and r.stdout == "begun\n", r
    assert sb.exec("flood").truncated

    everything = bytes(range(256)) * 4
    assert sb.upload("/root/b.bin", everything, mode="0600") == 1024
    assert sb.download("/root/b.bin") == everything
    sb.upload("/root/t.txt", "tést")
    assert sb.download_text("/root/t.txt") == "tést"
    assert sb.upload("/root/max", b"\0" * 5_000_000) == 5_000_000
    assert len(sb.download("/root/max")) == 5_000_000

    u = sb.usage()
    assert u["running_seconds"] == 61 and u["billed_usd"] > 0 and u["estimated_total_usd"] >= u["billed_usd"], u

    raises(eqvps.FileTooLargeError, 413, "too_large", lambda: sb.upload("/root/x", b"\0" * 5_000_001))
    raises(eqvps.FileTooLargeError, 413, "too_large", lambda: sb.upload("/root/x", b"\0" * 20_000_000))
    raises(eqvps.NotFoundError, 404, "file_not_found", lambda: sb.download("/root/none"))
    raises(eqvps.EqvpsError, 400, "invalid_timeout", lambda: sb.exec("echo", timeout=600))
    task = sb.exec("steps", background=True)
    assert task.id.startswith("task_") and task.state == "running" and not task.done, task
    assert task.status()["stdout_total"] == 0
    assert task.logs() == ("1\n", "")
    seen = []
    r = task.wait(timeout=30, poll_interval=0.01, on_output=lambda out, err: seen.append(out))
    assert r.ok and (r.state, r.exit_code, r.stdout, r.stderr) == ("done", 0, "2ä3\ufffd4\n\ufffd", ""), r
    assert seen == ["2", "ä3\ufffd", "4\n\ufffd"] and task.done and r.running_seconds is not None, seen
    assert [t["task_id"] for t in sb.tasks()] == [task.id]
    again = sb.task(task.id)
    assert again.wait().stdout == "1\n2ä3\ufffd4\n\ufffd"
    r = sb.run("fail", background=True, env={"A": 1}).wait()
    assert not r.ok and (r.state, r.exit_code, r.stderr) == ("failed", 3, "no\n"), r
    r = sb.exec(["echo", "hi"], background=True, cwd="/tmp", stdin="x", timeout=600).wait()
    assert r.ok and r.stdout == "hi\n", r
    r = sb.exec("flood", background=True).wait()  # in several portions
    assert r.stdout.endswith("xxend") and len(r.stdout) == 2621443 - 2**20, len(r.stdout)
    task = sb.exec("sleep", background=True)
    try:
        task.wait(timeout=0.01, poll_interval=0.01)
        raise AssertionError("it waited for ever")
    except eqvps.SandboxTimeoutError as e:
        assert e.code == "wait_timeout"
    killed = task.kill()
    assert killed["state"] == "killed" and killed["exit_code"] == 137 and task.done, killed
    r = task.wait()
    assert not r.ok and r.state == "killed", r
    assert task.kill()["state"] == "killed"
    assert sb.tasks()[0]["task_id"] == task.id
    raises(eqvps.NotFoundError, 404, "task_not_found", lambda: sb.task("task_" + "0" * 20).logs())
    raises(eqvps.EqvpsError, 400, "invalid_timeout", lambda: sb.exec("echo", background=True, timeout=3601))
    raises(eqvps.RateLimitError, 429, "task_limit_reached", lambda: sb.exec("crowded", background=True))

assert sb.state == "deleted"
sb.kill()  # again, without an error
raises(eqvps.SandboxDeletedError, 410, "sandbox_ended", lambda: sb.exec("echo"))
assert sb.id not in [s.id for s in Sandbox.list(**access)]

raises(eqvps.ValidationError, 422, "unknown_tariff", lambda: Sandbox.create(tariff="huge", **access))
raises(eqvps.NotFoundError, 404, "sandbox_not_found", lambda: Sandbox.connect("sb_" + "0" * 20, **access))
e = raises(eqvps.AuthenticationError, 401, "unauthenticated", lambda: Sandbox.list(api_key="wrong", base_url=base))
assert e.body["request_id"]

names = [t["name"] for t in eqvps.sandbox.tariffs(base)["data"]]
assert names == ["micro", "small", "standard", "plus", "pro", "max"], names
print("ok")
