# Drives the Daytona door with the official SDK for Python, unmodified.
from daytona import CreateSandboxFromSnapshotParams, Daytona


def rejects(work, text):
    try:
        work()
    except Exception as error:  # noqa: BLE001
        assert text in str(error), f"{error!r} says nothing of {text}"
        return error
    raise AssertionError(f"expected an error with {text}")


daytona = Daytona()
sandbox = daytona.create(CreateSandboxFromSnapshotParams(language="python", env_vars={"A": "b"}))
hello = sandbox.process.exec("echo hello $A; pwd")
assert (hello.exit_code, hello.result.strip()) == (0, "hello b\n/home/daytona"), hello
assert sandbox.process.exec("exit 3").exit_code == 3
assert sandbox.process.code_run("print(1 + 1)").result.strip() == "2"
sandbox.fs.upload_file(b"first", "a.txt")
assert sandbox.fs.download_file("a.txt") == b"first"
assert [file.name for file in sandbox.fs.list_files(".")] == ["a.txt"]
rejects(lambda: sandbox.process.exec("sudo id"), "DENY_APPROVAL_REQUIRED")
daytona.delete(sandbox)
rejects(lambda: daytona.get(sandbox.id), "")
print("ok", sandbox.id)
