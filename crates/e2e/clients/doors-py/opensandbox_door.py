# Drives the OpenSandbox door with the official SDK for Python, unmodified.
import asyncio

from opensandbox import Sandbox
from opensandbox.models import WriteEntry


async def main():
    sandbox = await Sandbox.create("python:3.12", env={"A": "b"})
    hello = await sandbox.commands.run("echo hello $A; pwd")
    assert [line.text for line in hello.logs.stdout] == ["hello b", "/workspace"], hello
    failed = await sandbox.commands.run("exit 3")
    assert failed.error is not None and failed.error.value == "3", failed
    await sandbox.files.write_files([WriteEntry(path="/workspace/a.txt", data="first", mode=644)])
    assert await sandbox.files.read_file("/workspace/a.txt") == "first"
    try:
        await sandbox.commands.run("sudo id")
        raise AssertionError("policy did not hold")
    except Exception as error:  # noqa: BLE001
        assert "DENY_" in str(error) or "403" in str(error), repr(error)
    await sandbox.kill()
    print("ok", sandbox.id)


asyncio.run(main())
