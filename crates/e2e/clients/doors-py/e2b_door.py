# Drives the E2B door with the official SDK for Python, unmodified.
import os

from e2b import CommandExitException, Sandbox, SandboxException


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

background = sandbox.commands.run("sleep 60", background=True, timeout=0)
assert sandbox.commands.kill(background.pid)

denied = rejects(lambda: sandbox.commands.run("touch /tmp/denied-ran; sudo id"), "DENY_")
assert isinstance(denied, SandboxException)
assert not sandbox.files.exists("/tmp/denied-ran")

assert sandbox.get_info().metadata == {"suite": "doors"}
assert sandbox.is_running()
assert not Sandbox.kill(sandbox.sandbox_id, api_key=os.environ["OTHER_KEY"])
assert sandbox.kill()
assert not sandbox.is_running()
print("ok", sandbox.sandbox_id)
