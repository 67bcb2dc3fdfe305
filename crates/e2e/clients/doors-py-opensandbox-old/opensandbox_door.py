# Drives the OpenSandbox door with an old version of the official SDK for Python, unmodified: the
# first one that sends an endpoint's headers back.
import asyncio
from datetime import timedelta

from opensandbox import Sandbox, SandboxManager, SandboxSync
from opensandbox.models import WriteEntry
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.filesystem import ContentReplaceEntry, MoveEntry, SearchEntry
from opensandbox.models.sandboxes import SandboxFilter


def lines(messages):
    return [message.text for message in messages]


async def main():
    sandbox = await Sandbox.create("python:3.12", env={"A": "b"}, metadata={"suite": "old"})
    hello = await sandbox.commands.run("echo hello $A; pwd; echo oops >&2")
    assert lines(hello.logs.stdout) == ["hello b", "/workspace"], hello
    assert lines(hello.logs.stderr) == ["oops"], hello
    failed = await sandbox.commands.run("exit 3")
    assert failed.error is not None and failed.error.value == "3", failed
    there = await sandbox.commands.run("pwd", opts=RunCommandOpts(working_directory="/tmp"))
    assert lines(there.logs.stdout) == ["/tmp"], there
    odd = "a\u2028b\u2029c\u0085d"
    assert lines((await sandbox.commands.run(f"echo '{odd}'")).logs.stdout) == [odd]
    begun = await sandbox.commands.run("echo up; sleep 60", opts=RunCommandOpts(background=True))
    said = ""
    while not said:
        await asyncio.sleep(0.05)
        said = (await sandbox.commands.get_background_command_logs(begun.id)).content
    assert said == "up\n", said
    assert (await sandbox.commands.get_command_status(begun.id)).running
    await sandbox.commands.interrupt(begun.id)
    assert not (await sandbox.commands.get_command_status(begun.id)).running

    await sandbox.files.create_directories([WriteEntry(path="/workspace/dir", mode=755)])
    await sandbox.files.write_files([WriteEntry(path="/workspace/dir/a", data="first", mode=644)])
    await sandbox.files.move_files([MoveEntry(src="/workspace/dir/a", dest="/workspace/dir/b")])
    change = ContentReplaceEntry(path="/workspace/dir/b", old_content="first", new_content="second")
    await sandbox.files.replace_contents([change])
    assert await sandbox.files.read_file("/workspace/dir/b") == "second"
    found = await sandbox.files.search(SearchEntry(path="/workspace", pattern="*"))
    assert [entry.path for entry in found] == ["/workspace/dir/b"], found
    assert (await sandbox.files.get_file_info(["/workspace/dir/b"]))["/workspace/dir/b"].mode == 644
    await sandbox.files.delete_directories(["/workspace/dir"])

    try:
        await sandbox.commands.run("sudo id")
        raise AssertionError("policy did not hold")
    except Exception as error:  # noqa: BLE001
        assert "DENY_" in str(error) or "403" in str(error), repr(error)

    assert await sandbox.is_healthy()
    await sandbox.renew(timedelta(minutes=20))
    manager = await SandboxManager.create()
    listed = await manager.list_sandbox_infos(SandboxFilter(metadata={"suite": "old"}))
    assert [info.id for info in listed.sandbox_infos] == [sandbox.id], listed
    await sandbox.pause()
    assert (await sandbox.get_info()).status.state == "Paused"
    await manager.close()
    await sandbox.kill()
    print("ok", sandbox.id)


def waiting():
    sandbox = SandboxSync.create("python:3.12")
    assert lines(sandbox.commands.run("echo sync").logs.stdout) == ["sync"]
    sandbox.kill()


waiting()
asyncio.run(main())
