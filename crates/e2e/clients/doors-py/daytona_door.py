# Drives the Daytona door with the official SDK for Python, unmodified, newest and older.
import asyncio
import os
import time

import daytona as sdk
from daytona import AsyncDaytona, CreateSandboxFromSnapshotParams, Daytona, DaytonaConfig, FileUpload, SessionExecuteRequest


def rejects(work, text):
    try:
        work()
    except Exception as error:  # noqa: BLE001
        assert text in str(error), f"{error!r} says nothing of {text}"
        return error
    raise AssertionError(f"expected an error with {text}")


daytona = Daytona()
params = CreateSandboxFromSnapshotParams(language="python", env_vars={"A": "b"}, labels={"suite": "py"}, auto_stop_interval=5)
sandbox = daytona.create(params)
process, fs, git = sandbox.process, sandbox.fs, sandbox.git
is_old = not hasattr(process, "send_session_command_input")

# Commands.
hello = process.exec("echo hello $A$OWN; pwd", env={"OWN": "!"})
assert (hello.exit_code, hello.result.strip()) == (0, "hello b!\n/home/daytona"), hello
assert process.exec("exit 3").exit_code == 3
assert process.exec("pwd", cwd="/tmp").result.strip() == "/tmp"
rejects(lambda: process.exec("(sleep 3; touch /tmp/late) & sleep 60", timeout=1), "timeout")
assert process.code_run("print(1 + 1)").result.strip() == "2"

# Files.
fs.upload_file(b"first", "a.txt")
assert fs.download_file("a.txt") == b"first"
assert [file.name for file in fs.list_files("~")] == ["a.txt"]
fs.upload_files([FileUpload(source=b"1", destination="~/more/1.txt"), FileUpload(source=b"22", destination="more/2.txt")])
for _ in range(2):
    fs.create_folder("more", "755")
fs.move_files("a.txt", "more/a.txt")
rejects(lambda: fs.move_files("more/1.txt", "more/2.txt"), "exists")
assert fs.get_file_info("more/2.txt").size == 2
fs.set_file_permissions("more/2.txt", mode="600")
rejects(lambda: fs.set_file_permissions("more/2.txt", mode="4755"), "octal")
assert fs.search_files("more", "a.*").files == ["/home/daytona/more/a.txt"]
assert [match.content for match in fs.find_files("~/more", "irs")] == ["first"]
assert [each.success for each in fs.replace_in_files(["more/a.txt", "none"], "first", "last")] == [True, False]
assert fs.download_file("more/a.txt") == b"last"

# Sessions: what a command leaves, output as it comes, input in lines.
process.create_session("s")
run = lambda command, **more: process.execute_session_command("s", SessionExecuteRequest(command=command, **more))
assert run("cd more; export KEPT=1").exit_code == 0
run("pwd > /tmp/where; echo $KEPT >> /tmp/where")
assert fs.download_file("/tmp/where") == b"/home/daytona/more\n1\n"
started = run("echo one; sleep 0.3; echo two", run_async=True)
said = []
asyncio.run(process.get_session_command_logs_async("s", started.cmd_id, said.append, said.append))
assert "".join(said) == "one\ntwo\n", said
if not is_old:
    asked = run("read a; read b; echo $a-$b", run_async=True)
    process.send_session_command_input("s", asked.cmd_id, "yes")
    process.send_session_command_input("s", asked.cmd_id, "no\n")
    while process.get_session_command("s", asked.cmd_id).exit_code is None:
        time.sleep(0.05)
    assert process.get_session_command_logs("s", asked.cmd_id).stdout == "yes-no\n"
process.delete_session("s")
rejects(lambda: process.get_session("s"), "not found")

# A terminal that is left and taken up again.
if hasattr(sdk, "PtySize"):
    pty = process.create_pty_session(id="tty", pty_size=sdk.PtySize(rows=30, cols=100))
    pty.disconnect()
    listed = process.list_pty_sessions()
    assert [(each.id, each.rows) for each in getattr(listed, "sessions", listed)] == [("tty", 30)]
    assert process.resize_pty_session("tty", sdk.PtySize(rows=40, cols=120)).rows == 40
    pty = process.connect_pty_session("tty")
    pty.send_input("stty size; exit 5\n")
    screen = []
    ended = pty.wait(on_data=lambda data: screen.append(data.decode()), timeout=20)
    # The older SDK looks at no reason of a normal end.
    code = 0 if is_old else 5
    assert "40 120" in "".join(screen) and ended.exit_code == code, (screen, ended)

# Repositories: commands of git like any other.
process.exec("git init -q -b main repo")
fs.upload_file(b"one", "repo/one.txt")
assert [(each.name, getattr(each.staging, "value", each.staging)) for each in git.status("repo").file_status] == [("one.txt", "Untracked")]
git.add("repo", ["one.txt"])
commit = git.commit("repo", "the first", "Ann", "ann@example.org")
assert process.exec("git log --format='%H %an %s'", cwd="repo").result.strip() == f"{commit.sha} Ann the first"
git.create_branch("repo", "side")
assert sorted(git.branches("repo").branches) == ["main", "side"]
git.checkout_branch("repo", "main")
assert git.status("repo").current_branch == "main"
git.delete_branch("repo", "side")
git.clone("repo", "copy")
assert fs.download_file("copy/one.txt") == b"one"
rejects(lambda: git.clone("repo", "other", username="u", password="p"), "username")
rejects(lambda: git.status("more"), "not a git repository")

# Refusals, and life.
rejects(lambda: process.exec("sudo id"), "DENY_APPROVAL_REQUIRED")
rejects(lambda: daytona.create(CreateSandboxFromSnapshotParams(snapshot="gpu-box")), "snapshot")
assert sandbox.set_labels({"suite": "py", "more": "1"})["more"] == "1"
sandbox.set_autostop_interval(7)
sandbox.set_auto_delete_interval(60)
sandbox.refresh_data()
assert (sandbox.auto_stop_interval, sandbox.auto_delete_interval) == (7, 60)
if hasattr(sdk, "ListSandboxesQuery"):
    query = sdk.ListSandboxesQuery(labels={"more": "1"}, states=["started"], sort="createdAt", order="asc", limit=1)
    rows = list(daytona.list(query))
else:
    rows = daytona.list({"more": "1"})
    rows = getattr(rows, "items", rows)
assert [row.id for row in rows] == [sandbox.id]
sandbox.stop()
rejects(lambda: process.exec("true"), "paused")
sandbox.start()
assert process.exec("ls /tmp more").result.split() == ["/tmp:", "where", "more:", "1.txt", "2.txt", "a.txt"]
other = Daytona(DaytonaConfig(api_key=os.environ["OTHER_KEY"], api_url=os.environ["DAYTONA_API_URL"]))
rejects(lambda: other.get(sandbox.id), "no such sandbox")


async def at_once():
    async with AsyncDaytona() as client:
        made = await client.create(CreateSandboxFromSnapshotParams(auto_delete_interval=0))
        done = await asyncio.gather(*(made.process.exec(f"echo {n}") for n in range(4)))
        assert [each.result.strip() for each in done] == ["0", "1", "2", "3"]
        # One that is to be gone when it is stopped is gone soon after.
        try:
            await made.stop()
        except Exception:  # noqa: BLE001
            pass
        for _ in range(100):
            try:
                await client.get(made.id)
            except Exception as error:  # noqa: BLE001
                assert "no such sandbox" in str(error), error
                return
            await asyncio.sleep(0.05)
        raise AssertionError("a stopped sandbox is still there")


asyncio.run(at_once())
daytona.delete(sandbox)
rejects(lambda: daytona.get(sandbox.id), "no such sandbox")
print("ok", sandbox.id)
