"""Drives repositories through the Daytona door with the official SDK, against a bare repository inside the sandbox."""
from daytona import Daytona

daytona = Daytona()
sandbox = daytona.create()
process, fs, git = sandbox.process, sandbox.fs, sandbox.git


def sh(command, cwd=None):
    done = process.exec(command, cwd=cwd)
    assert done.exit_code == 0, done.result
    return done.result.strip()


def rejects(call, part):
    try:
        call()
    except Exception as error:
        assert part in str(error), str(error)
        return
    raise AssertionError(f"expected an error with {part}")


def rows(path):
    word = lambda status: getattr(status, "value", status)
    return sorted((each.name, word(each.staging), word(each.worktree)) for each in git.status(path).file_status)


assert git.get_config("user.name") is None
git.configure_user("Ann", "ann@example.org")
assert git.get_config("user.name") == "Ann"

# A first push, and what follows what then.
git.init("origin.git", bare=True, initial_branch="main")
git.init("work", initial_branch="main")
git.remote_add("work", "origin", "/home/daytona/origin.git")
fs.upload_file(b"one\n", "work/one.txt")
git.add("work", ["one.txt"])
first = git.commit("work", "the first", "Ann", "ann@example.org")
git.push("work")
assert sh("git rev-parse main", "origin.git") == first.sha
assert git.status("work").upstream == ""
git.push("work", set_upstream=True)
status = git.status("work")
assert (status.upstream, status.branch_published, status.ahead, status.behind, status.detached) == ("origin/main", True, 0, 0, False)

# Another checkout, a branch of its own, and back.
git.clone("/home/daytona/origin.git", "other")
git.create_branch("other", "side")
fs.upload_file(b"two\n", "other/two.txt")
git.add("other", ["."])
second = git.commit("other", "the second", "Bob", "bob@example.org")
git.push("other", branch="side", remote="origin")
git.pull("work", branch="side", remote="origin")
assert sh("git rev-parse HEAD; cat two.txt", "work") == f"{second.sha}\ntwo"
assert git.status("work").ahead == 1
git.push("work")
git.checkout_branch("other", "main")
git.pull("other")
assert sh("git rev-parse HEAD", "other") == second.sha
listed = git.branches("other")
assert (sorted(listed.branches), listed.current) == (["main", "side"], "main")
git.delete_branch("other", "side")
assert git.branches("other").branches == ["main"]
rejects(lambda: git.push("work", branch=":side"), "branch")
assert sh("git rev-parse side", "origin.git") == second.sha

# History, as the toolbox's own client tells it.
history = git._api_client.get_commit_history(path="work")
assert [(each.hash, each.author, each.email, each.message.strip()) for each in history] == [
    (second.sha, "Bob", "bob@example.org", "the second"),
    (first.sha, "Ann", "ann@example.org", "the first"),
]

# Restore and reset.
fs.upload_file(b"changed\n", "work/one.txt")
git.add("work", ["one.txt"])
git.restore("work", ["one.txt"], staged=True)
assert rows("work") == [("one.txt", "Unmodified", "Modified")]
git.restore("work", ["one.txt"])
assert rows("work") == []
git.restore("work", ["one.txt", "two.txt"], source=second.sha)
sh("echo more >> one.txt; git add one.txt", "work")
assert rows("work") == [("one.txt", "Modified", "Unmodified")]
git.reset("work", files=["one.txt"])
assert rows("work") == [("one.txt", "Unmodified", "Modified")]
git.reset("work", mode="hard", target="HEAD~1")
assert sh("git rev-parse HEAD; cat one.txt; ls", "work") == f"{first.sha}\none\none.txt"
assert git.status("work").behind == 1

# Remotes and settings.
rejects(lambda: git.remote_add("work", "origin", "/nowhere"), "exists")
git.remote_add("work", "origin", "/home/daytona/other", fetch=True, overwrite=True)
assert git.remote_get("work", "origin") == "/home/daytona/other"
assert git.remote_get("work", "nobody") is None
assert [(each.name, each.url) for each in git.remotes("work").remotes] == [("origin", "/home/daytona/other")]
rejects(lambda: git.remote_add("work", "two", "https://user:never-stored-value@example.org/x"), "credentials")
rejects(lambda: git.clone("https://never-stored-value@example.org/x", "x"), "credentials")
git.set_config("core.note", "x y", scope="local", path="work")
assert git.get_config("core.note", scope="local", path="work") == "x y"
assert git.get_config("core.note") is None
rejects(lambda: git.set_config("core.note", "x", scope="system"), "scope")
rejects(lambda: git.dangerously_authenticate("user", "never-stored-value"), "password")

daytona.delete(sandbox)
print("ok repositories")
