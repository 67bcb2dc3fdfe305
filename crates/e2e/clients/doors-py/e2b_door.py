# Drives the E2B door with the official SDK for Python, unmodified.
import os
import sys

from e2b import CommandExitException, Sandbox, SandboxException


# The older SDK knows fewer calls.
IS_OLD = "old" in sys.argv[1:]


def rejects(work, text):
    try:
        work()
    except Exception as error:  # noqa: BLE001
        assert text in str(error), f"{error!r} says nothing of {text}"
        return error
    raise AssertionError(f"expected an error with {text}")


sandbox = Sandbox.create(timeout=120, envs={"FROM_CREATE": "yes"}, metadata={"suite": "doors"})
hello = sandbox.commands.run("echo hello; echo $FROM_CREATE; echo oops >&2")
assert (hello.stdout, hello.stderr, hello.exit_code) == ("hello\nyes\n", "oops\n", 0), hello
try:
    sandbox.commands.run("exit 3")
    raise AssertionError("exit 3 is no success")
except CommandExitException as error:
    assert error.exit_code == 3
rejects(lambda: sandbox.commands.run("sleep 60", timeout=1), "")

sandbox.files.write("/home/user/a.txt", "first")
assert sandbox.commands.run("cat a.txt").stdout == "first"
assert sandbox.files.read("a.txt") == "first"
assert [entry.name for entry in sandbox.files.list("/home/user")] == ["a.txt"]
assert sandbox.files.exists("/home/user/a.txt")
sandbox.files.remove("/home/user/a.txt")
assert not sandbox.files.exists("/home/user/a.txt")

# What happens in a watched directory is fetched, once and in order.
sandbox.files.make_dir("watched/old")
watch = sandbox.files.watch_dir("watched", recursive=True)
sandbox.files.write("watched/old/file", "x")
happened = [(event.type.value, event.name) for event in watch.get_new_events()]
assert happened == [("create", "old/file"), ("chmod", "old/file"), ("write", "old/file")], happened
sandbox.commands.run("mkdir watched/new && mv watched/old/file watched/new/file && rm -r watched/new")
happened = [(event.type.value, event.name) for event in watch.get_new_events()]
assert ("rename", "old/file") in happened and ("remove", "new") in happened, happened
assert watch.get_new_events() == []
watch.stop()
rejects(lambda: watch.get_new_events(), "stopped")
rejects(lambda: sandbox.files.watch_dir("/home/user/nothing"), "does not exist")
rejects(lambda: sandbox.files.watch_dir("/etc"), "does not exist")

background = sandbox.commands.run("sleep 60", background=True, timeout=0)
assert sandbox.commands.kill(background.pid)

# Input as one stream of pieces.
if not IS_OLD:
    cat = sandbox.commands.run("cat", background=True, stdin=True, timeout=0)
    sandbox.commands.stream_input(cat.pid, ["one ", b"two ", "three"])
    sandbox.commands.close_stdin(cat.pid)
    assert cat.wait().stdout == "one two three"
    rejects(lambda: sandbox.commands.stream_input(cat.pid, ["late"]), "no such process")

denied = rejects(lambda: sandbox.commands.run("touch /tmp/denied-ran; sudo id"), "DENY_")
assert isinstance(denied, SandboxException)
assert not sandbox.files.exists("/tmp/denied-ran")

measured = sandbox.get_metrics()[-1]
assert measured.cpu_count >= 1 and 0 <= measured.cpu_used_pct <= 100, measured
assert 0 < measured.disk_used <= measured.disk_total, measured
assert 0 <= measured.mem_used <= measured.mem_total, measured

assert sandbox.get_info().metadata == {"suite": "doors"}
(sandbox.beta_pause if IS_OLD else sandbox.pause)()
assert not sandbox.is_running()
sandbox.connect()
assert Sandbox.connect(sandbox.sandbox_id).commands.run("echo joined").stdout == "joined\n"
assert sandbox.is_running()
assert not Sandbox.kill(sandbox.sandbox_id, api_key=os.environ["OTHER_KEY"])
running = sandbox.commands.run("sleep 60", background=True, timeout=0)
assert sandbox.kill()
assert not sandbox.is_running()
# A command that ended with its sandbox is told as that, not as a program that failed.
ended = rejects(lambda: running.wait(), "sandbox")
assert not isinstance(ended, CommandExitException), ended
print("ok", sandbox.sandbox_id)
