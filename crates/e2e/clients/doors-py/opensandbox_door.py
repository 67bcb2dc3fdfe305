# Drives the OpenSandbox door with the official SDK for Python, unmodified.
import asyncio
import time
from datetime import timedelta

from opensandbox import Sandbox, SandboxManager, SandboxSync
from opensandbox.models import WriteEntry
from opensandbox.models.execd import RunCommandOpts
from opensandbox.models.filesystem import DirectoryListEntry
from opensandbox.models.sandboxes import NetworkPolicy, NetworkRule, SandboxFilter


def lines(messages):
    return [message.text for message in messages]


async def refused(call, word):
    try:
        await call
    except Exception as error:  # noqa: BLE001
        assert word in str(error), repr(error)
        return
    raise AssertionError(f"expected a refusal with {word}")


async def commands(sandbox):
    hello = await sandbox.commands.run("echo hello $A; pwd")
    assert lines(hello.logs.stdout) == ["hello b", "/workspace"], hello
    failed = await sandbox.commands.run("exit 3")
    assert failed.error is not None and failed.error.value == "3", failed
    words = await sandbox.commands.run(["printf", "%s|", "a b", "$HOME", "x'y"])
    assert lines(words.logs.stdout) == ["a b|$HOME|x'y|"], words
    await refused(sandbox.commands.run("sudo id"), "DENY_")
    await refused(sandbox.commands.run(["sudo", "id"]), "DENY_")
    await refused(sandbox.commands.run("id", opts=RunCommandOpts(uid=0)), "uid")
    begun = await sandbox.commands.run("sleep 60", opts=RunCommandOpts(background=True))
    assert (await sandbox.commands.get_command_status(begun.id)).running
    await sandbox.commands.interrupt(begun.id)
    assert not (await sandbox.commands.get_command_status(begun.id)).running
    many = await sandbox.commands.run("yes äöü | head -n 20000; printf end")
    assert lines(many.logs.stdout) == ["äöü"] * 20000 + ["end"]


async def variables(sandbox):
    """Variables are kept for later commands, and do no more than a client's own."""
    kept = {"PLAIN": "c", "DOLLAR": "$5 ${HOME}", "LINES": "a\nb", "QUOTE": "it's", "EMPTY": ""}
    for name, value in kept.items():
        await sandbox.commands.set_env(name, value)
        said = await sandbox.commands.run(f'printf "[%s]" "${name}"')
        assert "\n".join(lines(said.logs.stdout)) == f"[{value}]", (name, said)
    await sandbox.commands.set_env("PLAIN", "last")
    session = await sandbox.commands.create_session()
    said = await sandbox.commands.run_in_session(session, "echo $PLAIN")
    assert lines(said.logs.stdout) == ["last"], said
    own = await sandbox.commands.run("echo $PLAIN", opts=RunCommandOpts(envs={"PLAIN": "own"}))
    assert lines(own.logs.stdout) == ["own"], own
    await sandbox.commands.set_env("LD_PRELOAD", "/workspace/evil.so")
    await refused(sandbox.commands.run("true"), "LD_PRELOAD")
    await sandbox.files.delete_files(["/tmp/.execd/envs"])
    assert (await sandbox.commands.run("true")).exit_code == 0


async def files(sandbox):
    await sandbox.files.write_files([WriteEntry(path="/workspace/a.txt", data="first", mode=644)])
    assert await sandbox.files.read_file("/workspace/a.txt") == "first"
    listed = await sandbox.files.list_directory(DirectoryListEntry(path="/workspace"))
    assert [entry.path for entry in listed] == ["/workspace/a.txt"], listed


async def life(sandbox):
    await refused(sandbox.get_signed_endpoint(44772, int(time.time()) + 60), "expires")
    rules = [NetworkRule(action="deny", target="b.example.org"), NetworkRule(action="allow", target="*.example.org")]
    policy = NetworkPolicy(defaultAction="deny", egress=rules)
    await refused(Sandbox.create("x", network_policy=policy), "cannot be denied")
    await sandbox.patch_egress_rules([NetworkRule(action="deny", target="Bad.example.org")])
    told = [(rule.action, rule.target) for rule in (await sandbox.get_egress_policy()).egress]
    assert ("deny", "bad.example.org") in told, told
    await sandbox.delete_egress_rules(["bad.example.org", "never.example.org"])
    told = [rule.target for rule in (await sandbox.get_egress_policy()).egress]
    assert "bad.example.org" not in told, told
    manager = await SandboxManager.create()
    patched = await manager.patch_sandbox_metadata(sandbox.id, {"team": "a b&c", "gone": None})
    assert patched.metadata == {"team": "a b&c"}, patched
    found = await manager.list_sandbox_infos(SandboxFilter(metadata={"team": "a b&c"}, states=["Running"]))
    assert [info.id for info in found.sandbox_infos] == [sandbox.id], found
    measured = await sandbox.get_metrics()
    assert measured.cpu_count > 0 and 0 <= measured.cpu_used_percentage <= 100, measured
    assert 0 <= measured.memory_used_in_mib <= measured.memory_total_in_mib, measured
    assert abs(measured.timestamp / 1000 - time.time()) < 60, measured
    await sandbox.pause()
    assert not await sandbox.is_healthy()
    await Sandbox.resume(sandbox.id)
    renewed = await sandbox.renew(timedelta(minutes=20))
    assert renewed.expires_at == (await sandbox.get_info()).expires_at
    await manager.close()


async def main():
    sandbox = await Sandbox.create("python:3.12", env={"A": "b"}, metadata={"gone": "soon"})
    await commands(sandbox)
    await variables(sandbox)
    await files(sandbox)
    await life(sandbox)
    await sandbox.kill()
    print("ok", sandbox.id)


def waiting():
    """The calls that wait, which are other code."""
    with SandboxSync.create("python:3.12") as sandbox:
        assert lines(sandbox.commands.run("echo sync").logs.stdout) == ["sync"]
        sandbox.files.write_file("/workspace/x", "y")
        assert sandbox.files.read_file("/workspace/x") == "y"
        sandbox.kill()


waiting()
asyncio.run(main())
